"""Learning curves of running trainings, on the terminal or in the log.

Workers may be on other machines, so the curve is read from the checkpoint of each training, whose header holds all
epochs.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from tqdm import tqdm

from heatlas.pipeline.training.checkpoints import EpochRecord, read_history

SECONDS_BETWEEN_LINES = 10.0
WIDTH = 24
BARS = "▁▂▃▄▅▆▇█"


class CurveOnTerminal:
    """Context that reports the progress of trainings.

    Every `SECONDS_BETWEEN_LINES`, a line for each training with a new epoch: above the progress bar on a terminal,
    otherwise in the log of the run, or on standard output if no log is open.

    `trainings`: name and checkpoint of each.
    """

    def __init__(self, trainings: Sequence[tuple[str, Path]], max_epochs: int) -> None:
        self._trainings, self._max_epochs = list(trainings), max_epochs
        self._said: dict[str, int] = {}
        self._ended = threading.Event()
        self._writer = threading.Thread(target=self._write_lines, daemon=True)

    def __enter__(self) -> Self:
        self._writer.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self._ended.set()
        self._writer.join()

    def _write_lines(self) -> None:
        while not self._ended.wait(SECONDS_BETWEEN_LINES):
            for line in self.news():
                _say(line)

    def news(self) -> list[str]:
        """A line for each training with new epochs."""
        lines = []
        for name, path in self._trainings:
            history = read_history(path)
            if history and self._said.get(name) != len(history):
                self._said[name] = len(history)
                lines.append(curve_line(name, history, self._max_epochs))
        return lines


def _say(line: str) -> None:
    log = logging.getLogger("heatlas")
    if sys.stderr.isatty():
        tqdm.write(line, file=sys.stderr)
    elif log.handlers:
        log.info(line)
    else:
        print(line, flush=True)


def curve_line(name: str, history: Sequence[EpochRecord], max_epochs: int) -> str:
    """Latest numbers of a training, and the curve of its validation loss.

    Examples
    --------
    >>> records = [EpochRecord(1, 0.8, 0.5, 0.9, 0.5), EpochRecord(2, 0.6, 0.7, 0.7, 0.6)]
    >>> curve_line("fold-0", records, 20)
    'fold-0: epoch 2 of at most 20, loss 0.600 training 0.700 validation, score 0.600  █▁'
    """
    last = history[-1]
    curve = sparkline([record.validation_loss for record in history])
    return (
        f"{name}: epoch {last.epoch} of at most {max_epochs}, loss {last.train_loss:.3f} training "
        f"{last.validation_loss:.3f} validation, score {last.validation_score:.3f}  {curve}"
    )


def sparkline(values: Sequence[float]) -> str:
    """A curve of at most `WIDTH` characters; longer series are subsampled.

    Examples
    --------
    >>> sparkline([3.0, 2.0, 1.0, 1.0])
    '█▅▁▁'
    """
    count = min(len(values), WIDTH)
    shown = [values[(place + 1) * len(values) // count - 1] for place in range(count)]
    low, span = min(shown), max(shown) - min(shown)
    return "".join(BARS[round((value - low) / span * (len(BARS) - 1)) if span else 0] for value in shown)
