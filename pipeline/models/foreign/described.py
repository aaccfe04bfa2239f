"""Description files of networks that others trained: where the network is, its input contract, and what is published.

Such a file is one that ``heatlas run --config`` takes, with a section ``[published]``. Those of some public networks
lie in ``descriptions`` beside this module, without code and weights: copy one, and name yours in it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from torch import nn

from heatlas.pipeline.models.families.foreign import ForeignConfig, described_network, with_weights
from heatlas.pipeline.models.foreign.adapted import OutputForm
from heatlas.pipeline.run.config.files import PUBLISHED, checked_section, load_config
from heatlas.pipeline.run.config.ranges import at_least
from heatlas.pipeline.run.config.settings import Config
from heatlas.pipeline.run.documents import read_toml
from heatlas.pipeline.run.errors import BadInputError, UsageError

DESCRIPTIONS = Path(__file__).with_name("descriptions")


@dataclass(frozen=True)
class Published:
    """What the makers of a network say of it: how well it predicts the column `target`, and `on` whom.

    `sources`: ``OWNER/NAME@COMMIT:FILE: what it says``. `not_verified`: what they leave open.
    """

    name: str = ""
    target: str = ""
    measure: Literal["", "mae", "auc"] = ""
    estimate: Annotated[float, at_least(0)] = 0.0
    on: str = ""
    answers: str = ""
    trained_on: str = ""
    licence: str = ""
    sources: tuple[str, ...] = ()
    not_verified: tuple[str, ...] = ()

    @property
    def sentence(self) -> str:
        return f"published: {self.measure.upper()} {self.estimate:g}{f' ({self.on})' if self.on else ''}" * bool(
            self.measure
        )


@dataclass(frozen=True)
class Description:
    """A description file. `settings`: of the network; `config`: all settings of the file."""

    settings: ForeignConfig
    config: Config
    published: Published

    @property
    def form(self) -> OutputForm:
        one = self.settings
        return OutputForm(one.output, one.output_item, one.bins, one.times)

    def network(self) -> nn.Module:
        """The network with its weights; BadInputError or UsageError, in one line, if there are none or others."""
        for name in ("network", "weights"):
            if not getattr(self.settings, name):
                raise BadInputError(f"model.{name} is empty: name yours in a copy of the description file.")
        return with_weights(described_network(self.settings), Path(self.settings.weights))


def read_description(path: str | Path) -> Description:
    """Read a description file; BadInputError for an unknown key, or one without an input contract."""
    file = Path(path)
    try:
        config = load_config(file=file)
        published = checked_section(Published, read_toml(file).get(PUBLISHED, {}), f"{PUBLISHED}.", str(file))
    except UsageError as error:
        raise BadInputError(str(error)) from error
    if not isinstance(config.model, ForeignConfig) or not config.model.scaling:
        raise BadInputError(
            f'{file}: has no input contract. Set architecture = "foreign", grid and scaling in [model] '
            "(docs/howto/feed_a_public_network.md)."
        )
    return Description(config.model, config, published)
