"""Early stopping and selection of the epoch to keep, updated with the validation numbers of each epoch.

Both ignore the first ``min_epochs`` epochs, as in the founding study: batch statistics are still changing, and a lucky
early epoch on a small validation set could never be beaten.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from heatlas.pipeline.run.config.settings import TrainingConfig


@dataclass(frozen=True)
class BestEpoch:
    """State after `epoch` epochs.

    `epoch`: epochs done. `lowest_loss`: lowest validation loss of the epochs that count. `stale_epochs`: epochs since
    the lowest loss. `best_epoch`: epoch to keep: best validation score; on ties the lowest validation loss, then the
    first. `best_score`, `best_loss`: score and loss of the best epoch; a higher score is better.
    """

    epoch: int = 0
    lowest_loss: float | None = None
    stale_epochs: int = 0
    best_epoch: int | None = None
    best_score: float | None = None
    best_loss: float | None = None

    def after(self, loss: float, score: float, config: TrainingConfig) -> BestEpoch:
        """The state after one more epoch with this validation loss and score (higher is better).

        An epoch counts if more than ``min_epochs`` are done, or if it is the last one allowed.
        """
        state = dataclasses.replace(self, epoch=self.epoch + 1)
        if state.epoch <= config.min_epochs and state.epoch < config.max_epochs:
            return state
        if self.lowest_loss is None or loss < self.lowest_loss:
            state = dataclasses.replace(state, lowest_loss=loss, stale_epochs=0)
        else:
            state = dataclasses.replace(state, stale_epochs=self.stale_epochs + 1)
        if self._is_better(loss, score):
            state = dataclasses.replace(state, best_epoch=state.epoch, best_score=score, best_loss=loss)
        return state

    def _is_better(self, loss: float, score: float) -> bool:
        if self.best_score is None or self.best_loss is None:
            return True
        return (score, -loss) > (self.best_score, -self.best_loss)

    @property
    def improved(self) -> bool:
        """Whether the last epoch is the best so far."""
        return self.best_epoch == self.epoch

    def stopped_early(self, config: TrainingConfig) -> bool:
        """Whether the validation loss has not decreased for ``patience`` epochs."""
        return self.stale_epochs >= config.patience

    def finished(self, config: TrainingConfig) -> bool:
        return self.stopped_early(config) or self.epoch >= config.max_epochs
