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
_STACK = """lumiimg site fabric bootstrap{agent from=origin mirror=mirror_url because}
    layers=stack{name status arguments sources{file sha256 location}} doubts{id outcome because}"""
_BUILT = f"""built.image built.key built.size_bytes built.seconds built.steps built.reused_steps strategy=built.way
    built.is_new built.stages built.engine{{{_ENGINE}}} plan{{{_STACK}}}"""
_VARIABLE = "name value nodes because source"


@dataclass(frozen=True, slots=True)
class Kind:
    """One."""

    name: str
    """For `lumiimg schema NAME`."""
    printed_by: str
    """The command, or the file."""
    of: str
    """Its type: module, below `lumiimg`, and class."""
    keys: str = ""
    """Empty: all fields."""
    number: int = 1
    """Of the schema: the `schema` of its output.

    It counts up when a reader of the old one would be misled; docs/reference/json.md says when that is.
    """
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
        """What it says."""
        return self.type.__doc__ or ""


_ALL = (
    Kind(
        "adapt",
        "lumiimg adapt IMAGE --site S --json, where nothing is built",
        "check.adaptation.NothingAdded",
        "answer=sentence doubts",
    ),
    Kind("bench-import", "lumiimg bench import PLACE… --json", "check.startup.ImportBench"),
    Kind(
        "bind",
        "lumiimg bind IMAGE --host host.json --json",
        "check.explained.BoundImage",
        f"""of.image of.host decision manifest.fabric manifest.binds{{{_BOUND} chain}} environment{{value reason}}
        manifest.loaded{{{_LOADED}}} manifest.refusals{{attempt library need have chain words}} manifest.notes
        doubts""",
    ),
    Kind(
        "bind-manifest",
        "/.lumiimg/bind-manifest.json in an image, a JSON object of the SIF too (build --manifest FILE)",
        "host.carried_manifest.CarriedManifest",
        omits=True,
    ),
    Kind(
        "build",
        "lumiimg build … -o image.sif --json, lumiimg adapt … -o image.sif --json",
        "build.builder.BuildResult",
        _BUILT,
    ),
    Kind(
        "build-definitions",
        "lumiimg build … --definitions DIR --json, lumiimg adapt … --definitions DIR --json",
        "build.unfetched.WrittenDefinitions",
        f"folder definitions{{{_DEFINITION}}} fetch",
    ),
    Kind(
        "build-plan",
        "lumiimg build … --dry-run --json, lumiimg adapt … --dry-run --json",
        "definition.writer.BuildPlan",
        f"plan{{{_STACK}}} definitions{{{_DEFINITION}}}",
    ),
    Kind(
        "cache",
        "lumiimg cache ls --json",
        "build.cache_upkeep.CacheContent",
        f"cache size_bytes entries{{{_CACHED}}} unpacked{{key image size_bytes}}",
    ),
    Kind("cache-removed", "lumiimg cache prune --json, lumiimg cache rm --json", "build.cache_upkeep.CacheRemoved"),
    Kind("cache-verify", "lumiimg cache verify --json", "build.cache_upkeep.CacheVerified"),
    Kind(
        "check",
        "lumiimg check IMAGE --json",
        "check.pipeline.CheckReport",
        f"""image answer sentence advice level levels path findings
        probes=runs{{name simulation=is_simulation exit_code timed_out events=event_words}} collective gpu{{{_GPU}}}""",
    ),
    Kind("check-nodes", "lumiimg check IMAGE --nodes N --json", "cluster.nodes.report.NodesReport"),
    Kind("diff-images", "lumiimg diff OLD NEW --json, of images", "image.compare.ImageDiff"),
    Kind("diff-locks", "lumiimg diff OLD NEW --json, of locks", "resolve.lock_diff.LockDiff"),
    Kind(
        "doctor",
        "lumiimg doctor --json",
        "build.doctor.DoctorResult",
        f"machine.engine{{{_ENGINE}}} trials strategies room advice",
    ),
    Kind(
        "draft",
        "lumiimg draft Dockerfile --json",
        "definition.docker.draft.Draft",
        """file=path.dockerfile.path path.dockerfile.sha256 path.target
        path.stages{name=label line} stages_needed=path.needed{name=label line}
        recognised.base{image name near} path.platform path.arguments{name value=text line used}
        environment=path.variables path.steps{stage line instruction=keyword text}
        layers=recognised.known recognised.architectures{name line gpus has_gfx90a}
        left_out{line instruction=keyword what ends_build} environment.notes folder""",
    ),
    Kind(
        "drift",
        "lumiimg drift before.json [now.json] --json",
        "check.drift.DriftResult",
        """answer sentence drift.before{host taken} drift.now{host taken} drift.kinds drift.changes drift.notes
        images{image fate before{decision fabric} now{decision fabric}
            saved_binds{hold gone lack refusal{need have chain}} refused{id need have}
            driver{outcome need have because} notes remedies}
        unread{image why}""",
    ),
    Kind(
        "explain-bases",
        "lumiimg explain --add L --json",
        "resolve.plan.PossibleBases",
        "bases{base=base.name doubts=is_doubtful answer=outcome}",
    ),
    Kind(
        "explain-image",
        "lumiimg explain IMAGE [--host host.json] --json",
        "check.explained.ExplainedImage",
        f"""of.image of.host of.decision of.fabric of.static.path.plugin of.torch
        glibc=of{{image=glibc host=host_glibc}} of.rules{{{_RULE}}} nearest
        of.remedies report.advice of.loaded{{{_LOADED}}} of.missing
        of.margins{{library from=library_of provider provider_from=provider_of need=needed have=offered}}
        notes of.gpu{{{_GPU}}}""",
    ),
    Kind(
        "explain-request",
        "lumiimg explain --base B --add L --json",
        "resolve.plan.Plan",
        f"""decision fabric plugin torch rules nearest=nearest.asked{{base add fabric=fabric_choice}} base=base.name
        layers{{layer.name version status}} environment{{{_VARIABLE}}}""",
    ),
    Kind("host", "lumiimg host scan -o host.json (or --json)", "host.snapshot.Snapshot", omits=True),
    Kind(
        "job",
        "lumiimg job IMAGE … --json -- COMMAND",
        "cluster.job.short.JobScript",
        f"""plan.image site=plan.site.name plan.shape{{nodes gpus partition because account time_s whole_nodes}}
        framework=plan.framework.name launch ranks_per_node=plan.ranks plan.command binding plan.mpi
        environment=plan.settings{{name value scope because source}} plan.binds{{{_BOUND} read_only}} plan.notes
        script""",
    ),
    Kind(
        "ldd",
        "lumiimg ldd IMAGE PATH… --json",
        "host.image_libraries.Libraries",
        """files{closure errors warnings missing_versions} by_kernel?{closure errors warnings missing_versions}
        undecided? notes?""",
    ),
    Kind("list", "lumiimg list --json", "catalog.shown.Listing"),
    Kind("lock", "lumiimg lock … --json", "resolve.lock_diff.WrittenLock", "lock changes"),
    Kind(
        "log",
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
    Kind(
        "module",
        "lumiimg module IMAGE -o DIR --json",
        "cluster.module.folder.WrittenModule",
        f"""module=of.full_name of.image of.title use files of.wrappers of.commands of.boundary.fabric
        of.binds{{{_BOUND}}} of.container_environment
        environment=of.job_variables{{name value set_by=when left_out because source}} of.origin of.notes""",
    ),
    Kind(
        "plan",
        "/.lumiimg/lumiimg.json in an image, a JSON object of the SIF too",
        "build.image_plan.PlanInImage",
        "lumiimg site fabric base{agent from=origin sha256} layers{name version arguments requirements "
        "sources{name file sha256 from=location}} lock request",
        number_key="format",
    ),
    Kind(
        "rebuild",
        "lumiimg rebuild image.sif -o again.sif --json",
        "build.builder.RebuildResult",
        f"{_BUILT} differences",
    ),
    Kind("schemas", "lumiimg schema --json", "report.json_kinds.Schemas", "schemas{name number of=printed_by summary}"),
    Kind(
        "show-gpu",
        "lumiimg show image.sif --gpu --json",
        "resolve.gpu_code.ImageGpuCode",
        "image gpu code.files code.unreadable",
    ),
    Kind("show-image", "lumiimg show image.sif --json", "build.provenance.ImageRecord", number=2),
    Kind(
        "show-layer",
        "lumiimg show LAYER --json",
        "catalog.shown.ShownLayer",
        """layer.name kind layer.status layer.summary layer.source layer.date layer.folder layer.requires layer.has
        layer.provides layer.releases{version status requires source}
        read{version date requires expects wheels doubts source read} images layer.conflicts
        layer.arguments{default help} sources{url sha256}
        environment=layer{set=set_environment prepend=prepend_environment} trials""",
    ),
    Kind(
        "show-recipe",
        "lumiimg show RECIPE --json",
        "catalog.shown.ShownRecipe",
        "recipe.name kind recipe.summary recipe.base recipe.add recipe.site fabric arguments",
    ),
    Kind(
        "show-site",
        "lumiimg show SITE --json",
        "catalog.shown.ShownSite",
        f"""site.name kind site.title site.arch site.vendor site.processors site.status site.scheduler site.engine
        site.identity site.driver{{name rocm doubtful rank evidence source date}} site.fabric
        site.partitions{{name nodes least_nodes hours steps whole_nodes debug}} cores cores_sparing site.binds
        environment=site.variables{{{_VARIABLE} given unless}} site.modules questions site.options site.annotations
        site.domain site.measured site.advice""",
    ),
    Kind(
        "signatures",
        "lumiimg log --signatures --json",
        "nccl.vocabulary.Vocabulary",
        "signatures=known_signatures return_codes=known_codes",
    ),
    Kind("trial", "lumiimg trial report FOLDER --json, and FOLDER/trial.json", "cluster.trial.values.TrialReport"),
    Kind("trial-job", "lumiimg trial run FOLDER --json", "cluster.trial.turn.TrialJob"),
    Kind(
        "trial-plan",
        "lumiimg trial plan IMAGE -o FOLDER --json, and FOLDER/plan.json",
        "cluster.trial.values.TrialPlan",
    ),
    Kind(
        "venv",
        "lumiimg venv IMAGE -o FILE --json",
        "build.venv.WrittenVenv",
        "path record.image record.image_mark record.python record.torch record.requirements record.packages",
    ),
    Kind(
        "why",
        "lumiimg build … --why LAYER --json",
        "build.cache_miss.CacheLookup",
        f"layers hit entry{{{_CACHED}}} nearest{{{_CACHED}}} differences",
    ),
)
KINDS = {kind.name: kind for kind in _ALL}
"""By name."""


@dataclass(frozen=True, slots=True)
class Schemas:
    """The names of all schemas."""

    schemas: tuple[Kind, ...] = _ALL
    """By name."""
