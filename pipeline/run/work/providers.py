"""Jobs on a cluster: the settings ``[cluster]``, and Parsl's configuration from them or from a file of one's own.

Parsl's providers do the work; here they only get their options. Every configuration is then completed with what a run
relies on (`completed`): workers that need nothing of the shell that started the run, lost work repeated, files under
the run folder.
"""

from __future__ import annotations

import importlib.util
import re
import shlex
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from heatlas.pipeline.run.config.ranges import between, matching
from heatlas.pipeline.run.documents import irregular_kind
from heatlas.pipeline.run.errors import UsageError
from heatlas.pipeline.run.plain_text import counted, did_you_mean, nearest

# Values become lines of the script of a job: none may begin a line of its own, or run a program.
_Name = Annotated[str, matching(r"([\w@+][\w.,:@+/=%-]*)?", "be a name without spaces, quotes or line breaks")]
_TIME = matching(
    r"(?a:(?!0+:00)\d{1,4}:[0-5]\d:[0-5]\d)", "be hours:minutes:seconds and at least a minute, as in 04:00:00"
)
_SCRATCH_PATH = matching(
    r"([/$](?!\()([^\x00-\x1f\x7f\"`\\$]|\$(?!\())*)?",
    "be the path of a folder that begins with / or a variable, as in /local/$SLURM_JOB_ID; it may hold no quotes, "
    "backslashes, line breaks or commands",
)
_OPTION = matching(r"-[^\x00-\x1f\x7f]*", "be an option of one line that begins with -, as in --qos=long")
_VOLUME = matching(r"[^:\s]+:/\S*", "be claim:/path")
_UpTo10000 = Annotated[int, between(1, 10_000)]


@dataclass(frozen=True)
class ClusterConfig:
    """Jobs on a cluster, for ``--executor`` slurm, pbs, lsf, kubernetes or local; results do not depend on them."""

    partition: _Name = ""
    """Partition of Slurm, queue of PBS or LSF, namespace of Kubernetes; empty: the default of the cluster."""
    account: _Name = ""
    """Account or project that pays for the jobs."""
    time: Annotated[str, _TIME] = "04:00:00"
    """Longest time of a job, as hours:minutes:seconds; work that it cuts off is repeated by the next job."""
    jobs: _UpTo10000 = 4
    """Largest number of jobs at once, each on one node."""
    workers: _UpTo10000 = 4
    """Workers of a job; each takes one core and does one scan or fold at a time."""
    memory_gb: _UpTo10000 = 5
    """Memory of each worker."""
    gpus: Annotated[int, between(0, 64)] = 0
    """GPUs of a job that computes with networks; 0: networks too are computed on CPUs."""
    gpu_jobs: _UpTo10000 = 1
    """Largest number of jobs with GPUs at once."""
    workers_per_gpu: _UpTo10000 = 1
    """Folds or scans that share a GPU."""
    gpu_partition: _Name = ""
    """Partition or queue of jobs with GPUs; empty: that of the others."""
    worker_init: str = ""
    """Shell commands before the workers of a job start, such as ``module load cuda``. The Python environment of the
    command is used without them."""
    scratch: Annotated[str, _SCRATCH_PATH] = ""
    """Folder for temporary files on the node; may contain variables of the job, as in ``/local/$SLURM_JOB_ID``."""
    options: Annotated[tuple[str, ...], _OPTION] = ()
    """Further options of every job, as the scheduler writes them: ``--qos=long``."""
    address: _Name = ""
    """Address of this computer that the nodes can reach; empty: all its addresses are tried."""
    image: _Name = ""
    """Container image with Heatlas, for Kubernetes."""
    volumes: Annotated[tuple[str, ...], _VOLUME] = ()
    """Volume claims of Kubernetes and where they are mounted: ``claim:/data``."""

    def in_words(self) -> str:
        """What is asked of a scheduler.

        >>> ClusterConfig(partition="cpu", jobs=10, gpus=2).in_words()
        'up to 10 jobs, each on one node with 4 cores and 20 GB for 04:00:00; up to 1 job with 2 GPUs'
        """
        memory = self.workers * self.memory_gb
        words = f"up to {counted(self.jobs, 'job')}, each on one node with {counted(self.workers, 'core')}"
        words += f" and {memory:,} GB for {self.time}"
        return words + (
            f"; up to {counted(self.gpu_jobs, 'job')} with {counted(self.gpus, 'GPU')}" if self.gpus else ""
        )


RETRIES = 2
"""How often work is repeated whose worker was lost, unless the file says more."""
HEARTBEAT_SECONDS, LOST_AFTER_SECONDS = 10, 60
GPU = "gpu"
"""Label of the executor that computes with networks; all others do the rest."""
_PARSL_DEFAULT = "runinfo"
_BRACES = str.maketrans({"{": "{{{{", "}": "}}}}"})  # Parsl formats the command twice
_PROGRAMS = Path(sys.executable).parent
_SOURCE = Path(__file__).parents[4]
_INTERCHANGE = (
    "import ctypes, os, sys; os.setsid(); hasattr(ctypes.CDLL(None), 'prctl') and ctypes.CDLL(None).prctl(1, 15); "
    "os.execv(sys.argv[1], sys.argv[1:])"
)
"""Starts Parsl's interchange in a session of its own, since it must survive Ctrl-C until jobs are cancelled, and lets
it end with this process (PR_SET_PDEATHSIG): jobs would wait for it until their time is up."""


_SCRATCH = """mkdir -p "{0}" && TMPDIR=$(mktemp -d "{0}/heatlas.XXXXXX") || exit 1
export TMPDIR
trap 'rm -rf "$TMPDIR"' EXIT
trap 'exit 143' TERM"""


def named_config(name: str, settings: ClusterConfig) -> Any:
    """A `parsl.config.Config` for one of the `PROVIDERS`.

    Raises UsageError if the provider cannot be made.
    """
    from parsl.config import Config
    from parsl.jobs.error_handlers import windowed_error_handler

    try:
        executors = [_executor(name, settings, gpus, windowed_error_handler) for gpus in {0, settings.gpus}]
    except Exception as error:
        reason = " ".join(f"{error}".split())
        raise UsageError(f"--executor {name}: Parsl cannot use it here ({reason}).") from error
    return Config(executors=executors, strategy_period=1 if name == "local" else 5)


def _executor(name: str, settings: ClusterConfig, gpus: int, on_failed_jobs: Callable[..., None]) -> Any:
    from parsl.executors import HighThroughputExecutor

    workers = gpus * settings.workers_per_gpu or settings.workers
    executor = HighThroughputExecutor(
        label=GPU if gpus else "cpu",
        provider=PROVIDERS[name](settings, workers, gpus),
        address=settings.address or "127.0.0.1",
        max_workers_per_node=workers,
        available_accelerators=[str(gpu) for gpu in range(gpus) for _ in range(settings.workers_per_gpu)],
        heartbeat_period=HEARTBEAT_SECONDS,
        heartbeat_threshold=LOST_AFTER_SECONDS,
        block_error_handler=on_failed_jobs,
    )
    if not settings.address and name != "local":
        executor.address, executor.all_addresses = None, _own_addresses()  # Parsl's own search asks the internet
    return executor


def _own_addresses() -> set[str]:
    """IPv4 addresses at which other computers may find this one."""
    import socket

    import psutil  # Parsl needs it, too

    addresses = {
        entry.address
        for interface in psutil.net_if_addrs().values()
        for entry in interface
        if entry.family == socket.AF_INET
    }
    return {address for address in addresses if not address.startswith("127.")} or addresses


def _common(settings: ClusterConfig, gpus: int) -> dict[str, Any]:
    """Options that all schedulers have; jobs are submitted when there is work."""
    lines = [settings.worker_init]
    if settings.scratch:
        lines.append(_SCRATCH.format(settings.scratch))
    return {
        "worker_init": "\n".join(line for line in lines if line),
        "init_blocks": 0,
        "max_blocks": settings.gpu_jobs if gpus else settings.jobs,
    }


def _scheduled(settings: ClusterConfig, gpus: int) -> dict[str, Any]:
    return {**_common(settings, gpus), "walltime": settings.time, "cmd_timeout": 60}


def _lines(word: str, *options: str) -> str:
    return "\n".join(f"{word} {option}" for option in options if option)


def _queue(settings: ClusterConfig, gpus: int) -> str | None:
    return (gpus and settings.gpu_partition) or settings.partition or None


def _slurm(settings: ClusterConfig, workers: int, gpus: int) -> Any:
    from parsl.providers import SlurmProvider

    return SlurmProvider(
        partition=_queue(settings, gpus),
        account=settings.account or None,
        cores_per_node=workers,
        mem_per_node=workers * settings.memory_gb,
        gpus_per_node=gpus or None,
        exclusive=False,
        scheduler_options=_lines("#SBATCH", "--export=NONE", *settings.options),
        **_scheduled(settings, gpus),
    )


def _pbs(settings: ClusterConfig, workers: int, gpus: int) -> Any:
    from parsl import providers

    return providers.PBSProProvider(  # type: ignore[no-untyped-call]
        queue=_queue(settings, gpus),
        account=settings.account or None,
        cpus_per_node=workers,
        select_options=f"mem={workers * settings.memory_gb}gb" + (f":ngpus={gpus}" if gpus else ""),
        scheduler_options=_lines("#PBS", *settings.options),
        **_scheduled(settings, gpus),
    )


def _lsf(settings: ClusterConfig, workers: int, gpus: int) -> Any:
    from parsl import providers

    memory = f'-R "rusage[mem={settings.memory_gb}GB/task]"'
    return providers.LSFProvider(  # type: ignore[no-untyped-call]
        queue=_queue(settings, gpus),
        project=settings.account or None,
        request_by_nodes=False,
        cores_per_block=workers,
        cores_per_node=workers,
        bsub_redirection=True,
        scheduler_options=_lines("#BSUB", "-env none", memory, f"-gpu num={gpus}" if gpus else "", *settings.options),
        **_scheduled(settings, gpus),
    )


def _kubernetes(settings: ClusterConfig, workers: int, gpus: int) -> Any:
    from parsl.providers import KubernetesProvider

    if not settings.image:
        raise ValueError("set cluster.image to a container image with Heatlas")
    memory = f"{workers * settings.memory_gb}Gi"
    return KubernetesProvider(
        image=settings.image,
        namespace=_queue(settings, gpus) or "default",
        init_cpu=workers, max_cpu=workers, init_mem=memory, max_mem=memory,
        extra_limits={"nvidia.com/gpu": str(gpus)} if gpus else None,
        persistent_volumes=[(claim, path) for claim, _, path in (volume.partition(":") for volume in settings.volumes)],
        **_common(settings, gpus),
    )  # fmt: skip


def _local(settings: ClusterConfig, workers: int, gpus: int) -> Any:
    from parsl import providers

    return providers.LocalProvider(  # type: ignore[no-untyped-call]
        **{**_common(settings, gpus), "max_blocks": 1}
    )


PROVIDERS: dict[str, Callable[[ClusterConfig, int, int], Any]] = {
    "slurm": _slurm, "pbs": _pbs, "lsf": _lsf, "kubernetes": _kubernetes, "local": _local,
}  # fmt: skip
"""Values of ``--executor`` beside a file: each makes a provider of Parsl for so many workers and GPUs per job."""


def completed(config: Any, logs: Path) -> Any:
    """The configuration with what a run relies on; changed in place, what a file says otherwise is kept."""
    from parsl.executors.high_throughput.executor import DEFAULT_INTERCHANGE_LAUNCH_CMD, DEFAULT_LAUNCH_CMD
    from parsl.jobs.error_handlers import simple_error_handler, windowed_error_handler

    if config.run_dir == _PARSL_DEFAULT:
        config.run_dir = str(logs)
    config.retries = max(config.retries, RETRIES)
    for executor in config.executors:
        if getattr(executor, "interchange_launch_cmd", None) == DEFAULT_INTERCHANGE_LAUNCH_CMD:
            program = str(_PROGRAMS / DEFAULT_INTERCHANGE_LAUNCH_CMD[0])
            executor.interchange_launch_cmd = [sys.executable, "-c", _INTERCHANGE, sys.executable, program]
        in_image = hasattr(getattr(executor, "provider", None), "image")
        if getattr(executor, "launch_cmd", None) == DEFAULT_LAUNCH_CMD and not in_image:
            executor.launch_cmd = f"{_with_this_code()} {_PROGRAMS_PREFIX}{DEFAULT_LAUNCH_CMD}"
        if getattr(executor, "block_error_handler", None) is simple_error_handler:
            executor.block_error_handler = windowed_error_handler  # a first job that fails is not the end
    return config


def require_plain_path(config: Any) -> None:
    """Refuse a folder of Parsl whose path Parsl's shell commands, written without quotes, would take apart.

    Raises UsageError: names the folder and what it may not contain.
    """
    folder = str(Path(config.run_dir).absolute())
    misfit = re.search(r"[^\w./@+:=,-]", folder)
    if misfit and any(getattr(executor, "provider", None) is not None for executor in config.executors):
        raise UsageError(
            f"--executor: {folder}: Parsl cannot start jobs from a path with {misfit[0]!r}. Choose an output folder "
            "with only letters, digits and . _ - + = @ , : in its whole path."
        )


def _with_this_code() -> str:
    """Environment in which a node finds the code that runs here."""
    path = shlex.quote(str(_SOURCE)).translate(_BRACES)
    return f"env PYTHONPATH={path}" + '"${{{{PYTHONPATH:+:$PYTHONPATH}}}}"'


_PROGRAMS_PREFIX = f"{shlex.quote(sys.executable)} {shlex.quote(f'{_PROGRAMS}/')}".translate(_BRACES)


def read_config(path: Path) -> Any:
    """The ``config`` that a Python file defines; the file is run as code.

    Raises UsageError if the file cannot be read, fails, or does not define ``config``.
    """
    require_file(path)
    from parsl.config import Config

    spec = importlib.util.spec_from_file_location("heatlas_executor", path)
    if spec is None or spec.loader is None:
        raise UsageError(f"--executor {path}: give a Python file; its name ends in .py.")
    module = importlib.util.module_from_spec(spec)
    before, sys.dont_write_bytecode = sys.dont_write_bytecode, True  # nothing is left beside the file
    try:
        spec.loader.exec_module(module)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # it is code of any kind
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise UsageError(f"--executor {path}: cannot be run ({_where(error, path)}{reason}).") from error
    finally:
        sys.dont_write_bytecode = before
    config = getattr(module, "config", None)
    if not isinstance(config, Config):
        raise UsageError(f"--executor {path}: must define `config`, a parsl.config.Config.")
    return config


def require_file(path: Path) -> None:
    try:
        kind = irregular_kind(path)
    except OSError as error:
        names, meant = ", ".join(PROVIDERS), did_you_mean(nearest(str(path), PROVIDERS))
        raise UsageError(
            f"--executor {path}: cannot be read ({error.strerror}).{meant} Give a Python file, or one of {names}."
        ) from error
    if kind is not None:
        raise UsageError(f"--executor {path}: {kind}, not a file. Give a Python file; its name ends in .py.")


def _where(error: BaseException, path: Path) -> str:
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
    return f"line {lines[-1]}: " if lines else ""
