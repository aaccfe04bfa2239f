"""Numbers and names as a reader sees them: one way of writing each kind, everywhere on the page."""

from __future__ import annotations

import math
from collections.abc import Sequence

MISSING = "n/a"
LONGEST_NAME, LONGEST_TEXT = 100, 600
LONGEST_CLASS, LONGEST_IN_TITLE = 12, 24  # letters of a class beside a picture, and in the title of one or of an axis
LONGEST_REGION = 48  # letters of a region beside a figure
"""Characters of a name and of a sentence of the input that a page shows; the tables keep all of them."""


def is_missing(value: object) -> bool:
    """Whether a table cell is empty.

    Examples
    --------
    >>> is_missing(float("nan")), is_missing(None), is_missing(0.0)
    (True, True, False)
    """
    return value is None or (not isinstance(value, str) and value != value) or str(value) == "<NA>"


def number(value: object, digits: int = 3) -> str:
    """A number with `digits` significant digits and a true minus sign; whole numbers in full with thin groups.

    Examples
    --------
    >>> number(0.91234), number(-12.3456, 3), number(3), number(12345), number(None)
    ('0.912', '−12.3', '3', '12 345', 'n/a')
    >>> number(0.00001234), number(0.0), number(1234.5)
    ('1.23e−05', '0', '1 234')
    """
    if is_missing(value):
        return MISSING
    x = float(value)  # type: ignore[arg-type]
    if math.isinf(x):
        return "∞" if x > 0 else "−∞"
    if x == int(x) and abs(x) < 1e15:
        text = f"{int(x):,}"
    elif abs(x) >= 1000:
        text = f"{x:,.0f}"
    elif abs(x) < 1e-3:
        text = f"{x:.{digits - 1}e}"
    else:
        text = f"{x:.{max(digits - 1 - math.floor(math.log10(abs(x))), 0)}f}"
    return text.replace(",", " ").replace("-", "−")


def fixed(value: object, decimals: int = 2) -> str:
    """A number with a fixed count of decimals, for columns and rates.

    Examples
    --------
    >>> fixed(0.9), fixed(-0.561, 3), fixed(float("nan"))
    ('0.90', '−0.561', 'n/a')
    """
    return MISSING if is_missing(value) else f"{float(value):.{decimals}f}".replace("-", "−")  # type: ignore[arg-type]


def signed(value: object, decimals: int = 2) -> str:
    """A difference, with its sign.

    Examples
    --------
    >>> signed(1.3, 1), signed(-0.04), signed(-0.004), signed(None)
    ('+1.3', '−0.04', '0.00', 'n/a')
    """
    if is_missing(value):
        return MISSING
    rounded = round(float(value), decimals) + 0.0  # type: ignore[arg-type]
    return f"{'+' * (rounded > 0)}{fixed(rounded, decimals)}"


def percent(share: object, decimals: int = 1) -> str:
    """A share as per cent.

    Examples
    --------
    >>> percent(0.034)
    '3.4 %'
    """
    return MISSING if is_missing(share) else f"{fixed(100 * float(share), decimals)} %"  # type: ignore[arg-type]


def p_value(p: object) -> str:
    r"""A p value with its sign of equality, for running text.

    Examples
    --------
    >>> p_value(0.0312), p_value(0.00002), p_value(None)
    ('p\xa0=\xa00.031', 'p\xa0<\xa00.0001', 'p not available')
    """
    if is_missing(p):
        return "p not available"
    x = float(p)  # type: ignore[arg-type]
    if x < 1e-4:
        return "p\xa0<\xa00.0001"
    return f"p\xa0=\xa0{x:.{4 if x < 0.01 else 3 if x < 0.1 else 2}f}"


def p_cell(p: object) -> str:
    """A p value in a table.

    Examples
    --------
    >>> p_cell(0.0312), p_cell(0.00002), p_cell(None)
    ('0.0312', '< 0.0001', 'n/a')
    """
    return "< 0.0001" if not is_missing(p) and float(p) < 1e-4 else fixed(p, 4)  # type: ignore[arg-type]


def interval(low: object, high: object, decimals: int = 2, confidence: float = 0.95) -> str:
    """An interval for running text.

    Examples
    --------
    >>> interval(0.8, 0.95), interval(None, None)
    ('95 % interval 0.80 to 0.95', 'no interval')
    """
    if is_missing(low) or is_missing(high):
        return "no interval"
    return f"{100 * confidence:g} % interval {fixed(low, decimals)} to {fixed(high, decimals)}"


def count(n: int, noun: str, plural: str = "") -> str:
    """A count with its noun.

    Examples
    --------
    >>> count(1, "scan"), count(3, "scan"), count(0, "study", "studies")
    ('1 scan', '3 scans', '0 studies')
    """
    return f"{number(n)} {noun if n == 1 else plural or noun + 's'}"


def shortened(name: object, longest: int = LONGEST_NAME) -> str:
    """Text of the input as a page shows it: whole up to a length, then cut with an ellipsis.

    Examples
    --------
    >>> shortened("Charité"), shortened("x" * 5000, 5)
    ('Charité', 'xxxx…')
    """
    text = str(name)
    return text if len(text) <= longest else f"{text[: longest - 1].rstrip()}…"


def mid_sentence(name: object) -> str:
    """A name as it stands inside a sentence; the number of a region without a name says what it numbers.

    Examples
    --------
    >>> mid_sentence("Brain stem"), mid_sentence("DeepLIFT"), mid_sentence(17)
    ('brain stem', 'DeepLIFT', 'region 17')
    """
    text = shortened(name)
    if text.isdecimal():
        return f"region {text}"
    first = text.split(" ")[0]
    return text if first[1:] != first[1:].lower() else text[:1].lower() + text[1:]


def with_article(region: object) -> str:
    """A region as it stands inside a sentence after ``in``.

    Examples
    --------
    >>> with_article("Hippocampus"), with_article("17")
    ('the hippocampus', 'region 17')
    """
    return mid_sentence(region) if str(region).isdecimal() else f"the {mid_sentence(region)}"


def sentence_case(text: str) -> str:
    """Text as it stands at the beginning of a sentence.

    Examples
    --------
    >>> sentence_case("field strength")
    'Field strength'
    """
    return text[:1].upper() + text[1:]


def listing(items: Sequence[str]) -> str:
    """Items joined as in a sentence.

    Examples
    --------
    >>> listing(["a", "b", "c"])
    'a, b and c'
    """
    return " and ".join([", ".join(items[:-1]), items[-1]]) if len(items) > 1 else "".join(items)
