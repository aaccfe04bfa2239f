"""Text for people: control characters are shown, not executed, and paths do not name the home folder.

Also counts, lists, and the name that a misspelt one may mean.
"""

from __future__ import annotations

import contextlib
import difflib
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO
from urllib.parse import quote

from heatlas.pipeline.run.errors import HeatlasError

_OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters except tab and line feed, marks of writing direction, and lone surrogates."""


def plain(text: str, lines: bool = True) -> str:
    r"""Escape characters that a terminal would execute or cannot show, as Python does.

    `lines`: whether to keep line feeds and tabs.

    Examples
    --------
    >>> print(plain("site \x1b[31mred\x1b[0m"))
    site \x1b[31mred\x1b[0m
    """
    shown = _OBEYED.sub(lambda found: ascii(found[0])[1:-1], text)
    return shown if lines else shown.replace("\n", r"\n").replace("\t", r"\t")


def listed(names: Iterable[str], limit: int = 5) -> str:
    """Names for a message: the first few, and how many more.

    Examples
    --------
    >>> listed(["a", "b", "c"], limit=2)
    'a, b and 1 more'
    """
    all_names = list(names)
    more = len(all_names) - limit
    return ", ".join(all_names[:limit]) + (f" and {more} more" if more > 0 else "")


class PlainStream:
    """A text stream that writes only plain text and ignores write errors; otherwise like the stream it wraps.

    Characters that its encoding lacks are escaped. If it can no longer be written to, because the disk is full or the
    reader is gone, further text is discarded and the work continues.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        shown = plain(text)
        encoding = self._stream.encoding or "utf-8"
        try:
            self._stream.write(shown.encode(encoding, "backslashreplace").decode(encoding))
            self._stream.flush()
        except OSError:
            self._lose()
        return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except OSError:
            self._lose()

    def _lose(self) -> None:
        """Redirect the file of the stream to nowhere, since Python writes to it again at exit."""
        nowhere = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115  # to the end of the process
        with contextlib.suppress(OSError, ValueError):  # a stream in memory has no file
            os.dup2(nowhere.fileno(), self._stream.fileno())
        self._stream = nowhere

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def counted(n: int, noun: str, verb: str = "", plural: str = "") -> str:
    """A count with its noun and an agreeing verb.

    Examples
    --------
    >>> counted(1, "row"), counted(2, "row", "is"), counted(1, "study", "has", "studies"), counted(3, "row", "repeats")
    ('1 row', '2 rows are', '1 study has', '3 rows repeat')
    """
    verb = verb if n == 1 else _SEVERAL.get(verb, verb.removesuffix("s"))
    return " ".join(filter(None, [str(n), noun if n == 1 else plural or f"{noun}s", verb]))


_SEVERAL = {"is": "are", "has": "have", "": ""}


def note_on(
    names: Iterable[str], noun: str, text: str, *, before: str = "", verb: str = "", plural: str = "", limit: int = 5
) -> list[str]:
    """A note on some names: how many there are, what is said of them, and the first few; none where there are none.

    >>> note_on(["I1", "I2"], "image", "left out"), note_on(["I1"], "image", "read", before="a.csv: ", verb="is")
    (['2 images left out: I1, I2'], ['a.csv: 1 image is read: I1'])
    """
    all_names = list(names)
    counts = counted(len(all_names), noun, verb, plural)
    return [f"{before}{counts} {text}: {listed(all_names, limit)}"] if all_names else []


CUTOFF = 0.7
"""Similarity (difflib's ratio) below which nothing is suggested."""
ALIKE = (
    {"max_epochs", "epochs", "epoch", "n_epochs", "num_epochs"},
    {"learning_rate", "lr", "step_size"},
    {"batch_size", "batch", "bs"},
    {"dropout", "dropout_rate", "p_dropout"},
    {"weight_decay", "wd", "l2"},
    {"patience", "early_stopping"},
    {"folds", "n_folds", "n_splits", "kfold", "k", "cv"},
    {"seed", "random_state", "random_seed"},
    {"device", "gpu", "cuda"},
    {"atlas", "atlas_name", "parcellation"},
    {"architecture", "network", "model_name"},
    {"ensemble", "n_networks", "n_models"},
    {"resolution_mm", "resolution", "voxel_size", "spacing"},
    {"contrast_column", "contrast"},
    {"covariates", "confounds", "confounders", "nuisance"},
    {"expected-gradients", "eg", "gradient-shap"},
    {"integrated-gradients", "ig"},
    {"gradient", "saliency", "vanilla-gradient", "sensitivity"},
    {"input-x-gradient", "gradient-x-input", "ixg"},
    {"guided-backpropagation", "guided-backprop", "gb"},
    {"region-shapley", "shap", "shapley"},
    {"lrp", "layer-wise-relevance-propagation"},
    {"rollout", "attention-rollout"},
    {"diagnosis", "dx", "group", "diagnostic_group"},
    {"participant_id", "subject", "subject_id", "ptid"},
    {"sex", "gender"},
    {"site", "scanner", "centre", "center"},
    {"CN", "HC", "NC", "NL", "control", "controls", "healthy", "normal", "cognitively normal"},
    {"AD", "patient", "patients", "Alzheimer", "Alzheimer's disease", "dementia", "case", "cases"},
)
"""Names that mean the same: ours, and those of other programs and tables."""


def _letters(name: str) -> str:
    """Letters, digits and plus signs of a name, regardless of case: ``gradcam`` of ``Grad-CAM``, ``sub7`` of sub-07."""
    return re.sub(r"[\W_]|(?<!\d)0+(?=\d)", "", name.casefold().replace("+", "plus"))


def nearest(name: str, names: Iterable[str]) -> str | None:
    """The known name that a mistaken one may mean: by its letters, meaning (`ALIKE`), beginning, or similarity.

    Of two limits only the upper one is suggested for a bare name, since that is the one which ends the work.

    Examples
    --------
    >>> nearest("seks", ["age", "sex"]), nearest("AGE", ["age", "sex"]), nearest("tremor", ["age", "sex"])
    ('sex', 'age', None)
    >>> nearest("epochs", ["min_epochs", "max_epochs"]), nearest("gradcam", ["cam", "grad-cam++", "grad-cam"])
    ('max_epochs', 'grad-cam')
    >>> nearest("expected", ["gradient", "expected-gradients"])
    'expected-gradients'
    >>> nearest("Control", ["MCI", "HC"]), nearest("min_epoch", ["min_epochs", "max_epochs"])
    ('HC', 'min_epochs')
    >>> nearest("sub-7", ["sub-06", "sub-07", "sub-17"])
    'sub-07'
    """
    asked = _letters(name)
    known = {_letters(one): one for one in reversed(list(names))}
    same = next((group for group in ({_letters(one) for one in alike} for alike in ALIKE) if asked in group), set())
    found = [one for one in known if one == asked] or [one for one in known if one in same]
    found = found or [one for one in known if len(asked) > 3 and one.startswith(asked)]
    if found:
        return known[found[-1]]
    offered = {one.lower(): one for one in known.values() if "min" in asked or not one.startswith("min_")}
    closest = difflib.get_close_matches(name.lower(), offered, 1, CUTOFF if len(name) > 4 else 0.5)
    return offered[closest[0]] if closest else None


def nearest_setting(name: str, names: Sequence[str]) -> str | None:
    """The setting that a mistaken one may mean, in any section.

    >>> nearest_setting("training.learning_rat", ["seed", "training.learning_rate"])
    'training.learning_rate'
    >>> nearest_setting("lr", ["seed", "training.learning_rate"])
    'training.learning_rate'
    """
    section, _, own = name.rpartition(".")
    last = nearest(own, [setting.rpartition(".")[2] for setting in names])
    alike = [setting for setting in names if setting.rpartition(".")[2] == last]
    there = [setting for setting in alike if setting.rpartition(".")[0] == section]
    return max(there or alike, key=lambda one: difflib.SequenceMatcher(None, name, one).ratio(), default=None)


def similar(name: str, names: Iterable[object], limit: int = 4) -> list[str]:
    """Known names that resemble one, the most similar first, where several may be meant.

    >>> similar("hipocampus", ["Amygdala", "Left Hippocampus", "Hippocampus"])
    ['Hippocampus', 'Left Hippocampus']
    """
    by_lower = {str(one).lower(): str(one) for one in names}
    return [by_lower[one] for one in difflib.get_close_matches(name.lower(), by_lower, limit, 0.4)]


def did_you_mean(*names: str | None) -> str:
    """The question at the end of a message; empty without a suggestion."""
    meant = dict.fromkeys(filter(None, names))
    return f" Did you mean {', '.join(meant)}?" if meant else ""


def unknown(where: str, name: str, names: Iterable[str]) -> str:
    """The refusal of a name: what may be meant, and what there is.

    >>> unknown("--preset", "dmo", ["default", "demo"])
    '--preset dmo: unknown. Did you mean demo? Known are default, demo.'
    """
    all_names = list(names)
    return f"{where} {name}: unknown.{did_you_mean(nearest(name, all_names))} Known are {', '.join(all_names)}."


def without_home(text: str | Path) -> str:
    """A path, or a text with paths, with the user's home folder written as ``~``.

    Examples
    --------
    >>> without_home(f"heatlas check {Path.home()}/adni") if str(Path.home()) != "/" else "heatlas check ~/adni"
    'heatlas check ~/adni'
    """
    home = str(Path.home())
    return re.sub(rf"{re.escape(home)}(?![\w.-])", "~", str(text)) if home != os.sep else str(text)


_FOLDERS = re.compile(
    r"(?<![\w:/.~…-])(?:(?:/[^/\s:;,'\"()<>]+)+/|[A-Za-z]:[\\/](?:[^\\/\s:;,'\"()<>]+[\\/])*)(?=[^/\s])"
)
"""The folders of an absolute path, of two parts or more."""


def without_folders(text: str) -> str:
    r"""Cut absolute paths in a text to their last part, for pages that leave the machine.

    Examples
    --------
    >>> without_folders("heatlas run /data/trial/adni out --config=/etc/heatlas/my.toml")
    'heatlas run …/adni out --config=…/my.toml'
    >>> without_folders("AD/CN, n/a, https://a.org/b/c, 1 / 2, ../x/y, C:/Users/jane/adni")
    'AD/CN, n/a, https://a.org/b/c, 1 / 2, ../x/y, …/adni'
    """
    return _FOLDERS.sub("…/", text)


def relative_to_folder(path: Path, folder: Path) -> str:
    """Path relative to a folder, with POSIX separators; stays valid if both are moved together.

    >>> relative_to_folder(Path("/home/jane/adni"), Path("/home/jane/runs/first"))
    '../../adni'
    """
    return Path(os.path.relpath(path.resolve(), folder.resolve())).as_posix()


def relative_uri(path: Path, folder: Path) -> str:
    """The same as a relative URI reference, as BIDS allows in ``DatasetLinks``."""
    return quote(relative_to_folder(path, folder))


def last_part(argument: str) -> str:
    """An argument of a command line, with an absolute path cut to its last part.

    Examples
    --------
    >>> [last_part(one) for one in ("/data/adni", "--config=/home/jane/my.toml", "adni", "--contrast", "a/b=c,d")]
    ['…/adni', '--config=…/my.toml', 'adni', '--contrast', 'a/b=c,d']
    """
    option, equals, value = argument.partition("=") if argument.startswith("-") else ("", "", argument)
    return f"{option}{equals}…/{Path(value).name}" if Path(value).is_absolute() else without_home(argument)


def with_named_folders(text: str, folders: Mapping[Path, str]) -> str:
    """Replace folders in a text by names, also at the beginning of longer paths.

    >>> folders = {Path("/x/out"): "OUT", Path("/x/in"): "INPUT"}
    >>> with_named_folders("/x/out/report.html, not /x/in2 or /x/in.old, is of /x/in.", folders)
    'OUT/report.html, not /x/in2 or /x/in.old, is of INPUT.'
    """
    for folder in sorted(folders, key=lambda path: len(str(path)), reverse=True):
        if len(folder.parts) > 1:
            text = folders[folder].join(re.split(rf"{re.escape(str(folder))}(?![\w-]|\.\w)", text))
    return without_home(text)


@contextmanager
def shown_as(path: Path, name: str) -> Iterator[None]:
    """Replace the path of a file by `name` in messages and tracebacks of errors of this program.

    Examples
    --------
    >>> with shown_as(Path("/home/jane/adni/a.nii"), "a.nii"):
    ...     raise HeatlasError("/home/jane/adni/a.nii: truncated.")
    Traceback (most recent call last):
    heatlas.pipeline.run.errors.HeatlasError: a.nii: truncated.
    """
    try:
        yield
    except HeatlasError as error:
        if str(path) not in str(error):
            raise
        raise type(error)(str(error).replace(str(path), name)) from None
