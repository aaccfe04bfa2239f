"""The settings of jobs on a cluster; `pipeline.run.work.providers` makes Parsl's configuration of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from heatlas.pipeline.run.config.ranges import between, matching
from heatlas.pipeline.run.plain_text import counted

# Values become lines of the script of a job: none may begin a line of its own, or run a program.
_Name = Annotated[str, matching(r"([\w@+][\w.,:@+/=%-]*)?", "be a name without spaces, quotes or line breaks")]
_TIME = matching(
    r"(?a:(?!0+:00)\d{1,4}:[0-5]\d:[0-5]\d)", "be hours:minutes:seconds and at least a minute, as in 04:00:00"
)
_SCRATCH = matching(
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
    scratch: Annotated[str, _SCRATCH] = ""
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
