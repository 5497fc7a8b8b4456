"""The kinds of JSON that commands print: of which type each is, and which keys of it are printed.

`key` is an attribute of the type; `key=one.other`, or `one.key` where the names agree, one of an attribute of it. What
stands in braces are the keys of its objects; without them, all fields are. `key?` is there only where it has something.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass

AS_TEXT = frozenset({"Need", "GpuTarget"})
"""Types of rooms that are printed as their text."""
_BOUND = "source target reason"
_CACHED = "key file=data sha256 size_bytes layers seconds"
_DEFINITION = "name layers text"
_ENGINE = "kind version path"
_GPU = "gpu machine parts{component fit needed processors paths why}"
_LOADED = "name path host_path"
_RULE = "id outcome need have because source"
_STACK = """lumiimg lock.site lock.fabric lock.bootstrap{agent from=origin mirror=mirror_url because}
    layers=lock.stack{name status arguments sources{file sha256 location}} lock.doubts{id outcome because}"""
_BUILT = f"""built.image built.key built.size_bytes seconds built.steps built.reused_steps strategy=built.way
    built.is_new built.stages engine{{{_ENGINE}}} plan{{{_STACK}}}"""
_VARIABLE = "name value nodes because source"


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind."""

    printed_by: str
    """The commands, or the file."""
    of: str
    """Its type: module, below `lumiimg`, and class."""
    keys: str = ""
    """Empty: all fields."""
    number: int = 1
    """Counts up when a reader of the old one would be misled; docs/reference/json.md says when that is."""
    number_key: str = "schema"
    omits: bool = False
    """Whether what has its default is left out, as in a file that another room writes."""

    @property
    def type(self) -> type:
        """The type."""
        module, _, name = self.of.rpartition(".")
        found: type = getattr(importlib.import_module(f"lumiimg.{module}"), name)
        return found

    @property
    def summary(self) -> str:
        """What it says, in one sentence."""
        return self.type.__doc__ or ""


KINDS = {
    "adapt": Kind("lumiimg adapt IMAGE --site S --json, where nothing is built", "report.json_builds.NothingToAdapt"),
    "bench-import": Kind("lumiimg bench import PLACE… --json", "check.startup.ImportBench"),
    "bind": Kind(
        "lumiimg bind IMAGE --host host.json --json",
        "report.json_images.BoundImage",
        f"""of.image of.host decision manifest.fabric manifest.binds{{{_BOUND} chain}} environment{{value reason}}
        manifest.loaded{{{_LOADED}}} manifest.refusals{{attempt library need have chain words}} manifest.notes
        doubts""",
    ),
    "bind-manifest": Kind(
        "/.lumiimg/bind-manifest.json in an image, a JSON object of the SIF too (build --manifest FILE)",
        "host.carried_manifest.CarriedManifest",
        omits=True,
    ),
    "build": Kind(
        "lumiimg build … -o image.sif --json, lumiimg adapt … -o image.sif --json",
        "report.json_builds.BuildResult",
        _BUILT,
    ),
    "build-definitions": Kind(
        "lumiimg build … --definitions DIR --json, lumiimg adapt … --definitions DIR --json",
        "report.json_builds.WrittenDefinitions",
        f"folder definitions{{{_DEFINITION}}} fetch",
    ),
    "build-plan": Kind(
        "lumiimg build … --dry-run --json, lumiimg adapt … --dry-run --json",
        "report.json_builds.BuildPlan",
        f"plan{{{_STACK}}} definitions{{{_DEFINITION}}}",
    ),
    "cache": Kind(
        "lumiimg cache ls --json",
        "build.cache_upkeep.CacheContent",
        f"cache size_bytes entries{{{_CACHED}}} unpacked{{key image size_bytes}}",
    ),
    "cache-removed": Kind("lumiimg cache prune --json, lumiimg cache rm --json", "build.cache_upkeep.CacheRemoved"),
    "cache-verify": Kind("lumiimg cache verify --json", "build.cache_upkeep.CacheVerified"),
    "check": Kind(
        "lumiimg check IMAGE --json",
        "check.pipeline.CheckReport",
        f"""image answer sentence advice level levels path findings
        probes=runs{{name simulation=is_simulation exit_code timed_out events=event_words}} collective gpu{{{_GPU}}}""",
    ),
    "check-nodes": Kind("lumiimg check IMAGE --nodes N --json", "cluster.nodes.report.NodesReport"),
    "diff-images": Kind("lumiimg diff OLD NEW --json, of images", "image.compare.ImageDiff"),
    "diff-locks": Kind("lumiimg diff OLD NEW --json, of locks", "resolve.lock_diff.LockDiff"),
    "doctor": Kind(
        "lumiimg doctor --json",
        "build.doctor.DoctorResult",
        f"machine.engine{{{_ENGINE}}} trials strategies room advice",
    ),
    "draft": Kind(
        "lumiimg draft Dockerfile --json",
        "definition.docker.draft.Draft",
        """file=path.dockerfile.path path.dockerfile.sha256 path.target
        path.stages{name=label line} stages_needed=path.needed{name=label line}
        recognised.base{image name near} path.platform path.arguments{name value=text line used}
        environment=path.variables path.steps{stage line instruction=keyword text}
        layers=recognised.known recognised.architectures{name line gpus has_gfx90a}
        left_out{line instruction=keyword what ends_build} environment.notes folder""",
    ),
    "drift": Kind(
        "lumiimg drift before.json [now.json] --json",
        "check.drift.DriftResult",
        """answer sentence drift.before{host taken} drift.now{host taken} drift.kinds drift.changes drift.notes
        images{image fate before{decision fabric} now{decision fabric}
            saved_binds{hold gone lack refusal{need have chain}} refused{id need have}
            driver{outcome need have because} notes remedies}
        unread{image why}""",
    ),
    "explain-bases": Kind(
        "lumiimg explain --add L --json",
        "resolve.plan.PossibleBases",
        "bases{base=base.name doubts=is_doubtful answer=outcome}",
    ),
    "explain-image": Kind(
        "lumiimg explain IMAGE [--host host.json] --json",
        "report.json_images.ExplainedImage",
        f"""of.image of.host of.decision of.fabric of.static.path.plugin of.torch glibc of.rules{{{_RULE}}} nearest
        of.remedies advice of.loaded{{{_LOADED}}} of.missing
        of.margins{{library from=library_of provider provider_from=provider_of need=needed have=offered}}
        notes of.gpu{{{_GPU}}}""",
    ),
    "explain-request": Kind(
        "lumiimg explain --base B --add L --json",
        "resolve.plan.Plan",
        f"""decision fabric plugin torch rules nearest=nearest.asked{{base add fabric=fabric_choice}} base=base.name
        layers{{layer.name version status}} environment{{{_VARIABLE}}}""",
    ),
    "host": Kind("lumiimg host scan -o host.json (or --json)", "host.snapshot.Snapshot", omits=True),
    "job": Kind(
        "lumiimg job IMAGE … --json -- COMMAND",
        "cluster.job.short.JobScript",
        f"""plan.image site=plan.site.name plan.shape{{nodes gpus partition because account time_s whole_nodes}}
        framework=plan.framework.name launch ranks_per_node=plan.ranks plan.command binding plan.mpi
        environment=plan.settings{{name value scope because source}} plan.binds{{{_BOUND} read_only}} plan.notes
        script""",
    ),
    "ldd": Kind(
        "lumiimg ldd IMAGE PATH… --json",
        "host.image_libraries.Libraries",
        """files{closure errors warnings missing_versions} by_kernel?{closure errors warnings missing_versions}
        undecided? notes?""",
    ),
    "list": Kind("lumiimg list --json", "catalog.shown.Listing"),
    "lock": Kind("lumiimg lock … --json", "resolve.lock_diff.WrittenLock", "lock changes"),
    "log": Kind(
        "lumiimg log FILE… --json",
        "check.run.log_answer.LogAnswer",
        """answer report.advice report.verdict report.confidence report.proof
        ranks{process verdict confidence network provider}
        report.nodes{verdict network provider cause confidence count names} report.told report.runs_before
        report.first_line report.excerpt report.single_node report.failed_running report.connected report.ended
        report.end_unclear report.stall report.progress report.differing report.channels report.communicators
        report.library report.plugin report.provider report.transport.gdr report.transport.pxn
        report.transport.protocol report.transport.nics report.transport.interfaces report.transport.bootstrap
        environment report.measurements report.causes findings image""",
    ),
    "module": Kind(
        "lumiimg module IMAGE -o DIR --json",
        "cluster.module.folder.WrittenModule",
        f"""module=of.full_name of.image of.title use files of.wrappers of.commands of.boundary.fabric
        of.binds{{{_BOUND}}} of.container_environment
        environment=of.job_variables{{name value set_by=when left_out because source}} of.origin of.notes""",
    ),
    "plan": Kind(
        "/.lumiimg/lumiimg.json in an image, a JSON object of the SIF too",
        "report.json_builds.PlanInImage",
        "lumiimg site fabric base{agent from=origin sha256} layers{name version arguments requirements "
        "sources{name file sha256 from=location}} lock request",
        number_key="format",
    ),
    "rebuild": Kind(
        "lumiimg rebuild image.sif -o again.sif --json",
        "report.json_builds.RebuildResult",
        f"{_BUILT} differences",
    ),
    "schemas": Kind("lumiimg schema --json", "report.json_builds.Schemas"),
    "show-gpu": Kind(
        "lumiimg show image.sif --gpu --json",
        "resolve.gpu_code.ImageGpuCode",
        "image gpu code.files code.unreadable",
    ),
    "show-image": Kind("lumiimg show image.sif --json", "build.provenance.ImageRecord", number=2),
    "show-layer": Kind(
        "lumiimg show LAYER --json",
        "catalog.shown.ShownLayer",
        """layer.name kind layer.status layer.summary layer.source layer.date layer.folder layer.requires layer.has
        layer.provides layer.releases{version status requires source}
        read{version date requires expects wheels doubts source read} images layer.conflicts
        layer.arguments{default help} sources{url sha256}
        environment=layer{set=set_environment prepend=prepend_environment} trials""",
    ),
    "show-recipe": Kind(
        "lumiimg show RECIPE --json",
        "catalog.shown.ShownRecipe",
        "recipe.name kind recipe.summary recipe.base recipe.add recipe.site fabric arguments",
    ),
    "show-site": Kind(
        "lumiimg show SITE --json",
        "catalog.shown.ShownSite",
        f"""site.name kind site.title site.arch site.vendor site.processors site.status site.scheduler site.engine
        site.identity site.driver{{name rocm doubtful rank evidence source date}} site.fabric
        site.partitions{{name nodes least_nodes hours steps whole_nodes debug}} cores cores_sparing site.binds
        environment=site.variables{{{_VARIABLE} given unless}} site.modules questions site.options site.annotations
        site.domain site.measured site.advice""",
    ),
    "signatures": Kind(
        "lumiimg log --signatures --json",
        "nccl.vocabulary.Vocabulary",
        "signatures=known_signatures return_codes=known_codes",
    ),
    "trial": Kind("lumiimg trial report FOLDER --json, and FOLDER/trial.json", "cluster.trial.values.TrialReport"),
    "trial-job": Kind("lumiimg trial run FOLDER --json", "cluster.trial.turn.TrialJob"),
    "trial-plan": Kind(
        "lumiimg trial plan IMAGE -o FOLDER --json, and FOLDER/plan.json", "cluster.trial.values.TrialPlan"
    ),
    "venv": Kind(
        "lumiimg venv IMAGE -o FILE --json",
        "build.venv.WrittenVenv",
        "path record.image record.image_mark record.python record.torch record.requirements record.packages",
    ),
    "why": Kind(
        "lumiimg build … --why LAYER --json",
        "build.cache_miss.CacheLookup",
        f"layers hit entry{{{_CACHED}}} nearest{{{_CACHED}}} differences",
    ),
}
