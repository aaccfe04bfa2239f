"""Interactive parts of a page: markup, styles and scripts that travel together.

A component is made by a function of the run and carries all that it needs, data included. A page inlines the styles
and scripts of its components once each, however often they occur, and its content security policy names the digest of
every script: what is not one of them cannot run.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from markupsafe import Markup


@dataclass(frozen=True)
class Component:
    """One interactive part of a page."""

    # The fragment. Made by a template with escaping on, so that text of the input is text on the page. A component
    # works, if plainly, without scripts; controls that need them start ``hidden``
    html: Markup
    css: str = ""  # style sheet. Rules are under a class of the component, so that they touch nothing else
    # Scripts, run in this order at the end of the page. Each finds its own elements and may be on a page that has
    # several of them. A component without elements of its own, such as a library, may be a script alone
    scripts: tuple[str, ...] = ()


@dataclass(frozen=True)
class PageAssets:
    """Styles and scripts of one page, each once, and the policy that allows just these."""

    styles: tuple[str, ...]
    scripts: tuple[str, ...]

    @classmethod
    def of(cls, base_css: str, base_scripts: Sequence[str], components: Iterable[Component]) -> PageAssets:
        """Collect the page's own styles and scripts and those of its components."""
        styles, scripts = dict.fromkeys([base_css]), dict.fromkeys(base_scripts)
        for component in components:
            styles.update(dict.fromkeys([component.css] * bool(component.css)))
            scripts.update(dict.fromkeys(component.scripts))
        return cls(tuple(styles), tuple(scripts))

    @property
    def policy(self) -> str:
        """Content security policy: nothing from elsewhere, pictures inlined or files of the run, only these scripts.

        A page without scripts allows none.
        """
        digests = " ".join(f"'sha256-{script_digest(script)}'" for script in self.scripts) or "'none'"
        return (
            "default-src 'none'; img-src 'self' file: data: blob:; style-src 'unsafe-inline'; "
            f"script-src {digests}; base-uri 'none'; form-action 'none'"
        )


def script_digest(script: str) -> str:
    """SHA-256 of an inlined script, as a policy writes it.

    Examples
    --------
    >>> script_digest("")
    '47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU='
    """
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def embedded_json(value: object) -> Markup:
    r"""Data as JSON for a ``<script type="application/json">``; no text in it can end the element.

    Examples
    --------
    >>> embedded_json({"site": "</script>"})
    Markup('{"site":"\\u003c/script\\u003e"}')
    """
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    for letter in "<>&\u2028\u2029":
        text = text.replace(letter, f"\\u{ord(letter):04x}")
    return Markup(text)
