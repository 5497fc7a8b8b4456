from setuptools import find_packages, setup
from setuptools.command.build_py import build_py
from setuptools.dist import Distribution
class BinaryDistribution(Distribution):
    def has_ext_modules(self):
        return True
class ExtBuildPy(build_py):
    def run(self):
        self.run_command("build_cmake")
        super().run()
setup(version="0.48.2", packages=find_packages(), distclass=BinaryDistribution, cmake_source_dir=".",
    cmdclass={"build_py": ExtBuildPy})
