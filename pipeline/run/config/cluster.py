"""The settings of jobs on a cluster; `pipeline.run.work.providers` makes Parsl's configuration of them."""

from __future__ import annotations

import re
from dataclasses import dataclass

from heatlas.pipeline.run.plain_text import counted

_NAME = r"([\w@+][\w.,:@+/=%-]*)?"
_OPTION = r"-[^\x00-\x1f\x7f]*"
_SCRATCH = r"([/$](?!\()([^\x00-\x1f\x7f\"`\\$]|\$(?!\())*)?"
"""Values become lines of the script of a job: none may begin a line of its own, or run a program."""


@dataclass(frozen=True)
class ClusterConfig:
    """Jobs on a cluster, for ``--executor`` slurm, pbs, lsf, kubernetes or local; results do not depend on them."""

    partition: str = ""
    """Partition of Slurm, queue of PBS or LSF, namespace of Kubernetes; empty: the default of the cluster."""
    account: str = ""
    """Account or project that pays for the jobs."""
    time: str = "04:00:00"
    """Longest time of a job, as hours:minutes:seconds; work that it cuts off is repeated by the next job."""
    jobs: int = 4
    """Largest number of jobs at once, each on one node."""
    workers: int = 4
    """Workers of a job; each takes one core and does one scan or fold at a time."""
    memory_gb: int = 5
    """Memory of each worker."""
    gpus: int = 0
    """GPUs of a job that computes with networks; 0: networks too are computed on CPUs."""
    gpu_jobs: int = 1
    """Largest number of jobs with GPUs at once."""
    workers_per_gpu: int = 1
    """Folds or scans that share a GPU."""
    gpu_partition: str = ""
    """Partition or queue of jobs with GPUs; empty: that of the others."""
    worker_init: str = ""
    """Shell commands before the workers of a job start, such as ``module load cuda``. The Python environment of the
    command is used without them."""
    scratch: str = ""
    """Folder for temporary files on the node; may contain variables of the job, as in ``/local/$SLURM_JOB_ID``."""
    options: tuple[str, ...] = ()
    """Further options of every job, as the scheduler writes them: ``--qos=long``."""
    address: str = ""
    """Address of this computer that the nodes can reach; empty: all its addresses are tried."""
    image: str = ""
    """Container image with Heatlas, for Kubernetes."""
    volumes: tuple[str, ...] = ()
    """Volume claims of Kubernetes and where they are mounted: ``claim:/data``."""

    def in_words(self) -> str:
        """What is asked of a scheduler.

        >>> ClusterConfig(partition="cpu", jobs=10, gpus=2).in_words()
        'up to 10 jobs, each on one node with 4 cores and 20 GB for 04:00:00; up to 1 job with 2 GPUs'
        """
        memory = self.workers * self.memory_gb
        said = f"up to {counted(self.jobs, 'job')}, each on one node with {counted(self.workers, 'core')}"
        said += f" and {memory:,} GB for {self.time}"
        return said + (f"; up to {counted(self.gpu_jobs, 'job')} with {counted(self.gpus, 'GPU')}" if self.gpus else "")

    def checks(self) -> list[tuple[bool, str]]:
        """What must hold, and the message if it does not."""
        counts = {name: getattr(self, name) for name in ("jobs", "workers", "memory_gb", "gpu_jobs", "workers_per_gpu")}
        return [
            *(
                (1 <= value <= 10_000, f"cluster.{name} must lie between 1 and 10,000")
                for name, value in counts.items()
            ),
            (0 <= self.gpus <= 64, "cluster.gpus must lie between 0 and 64"),
            (
                re.fullmatch(r"(?!0+:00)\d{1,4}:[0-5]\d:[0-5]\d", self.time, re.ASCII) is not None,
                "cluster.time must be hours:minutes:seconds and at least a minute, as in 04:00:00",
            ),
            *(
                (
                    re.fullmatch(_NAME, getattr(self, name)) is not None,
                    f"cluster.{name} must be a name without spaces, quotes or line breaks",
                )
                for name in ("partition", "gpu_partition", "account", "address", "image")
            ),
            (
                all(re.fullmatch(_OPTION, option) for option in self.options),
                "cluster.options must hold options of one line each that begin with -, as in --qos=long",
            ),
            (
                re.fullmatch(_SCRATCH, self.scratch) is not None,
                "cluster.scratch must be the path of a folder that begins with / or a variable, as in "
                "/local/$SLURM_JOB_ID; it may hold no quotes, backslashes, line breaks or commands",
            ),
            (
                all(re.fullmatch(r"[^:\s]+:/\S*", volume) for volume in self.volumes),
                "cluster.volumes must hold claim:/path",
            ),
        ]
