"""The documentation site (`make docs`): Sphinx, MyST Markdown, furo; the built pages load nothing from the network.

The examples are executed on `demo/run`; where there is none they are shown without what they print and draw.
"""

from __future__ import annotations

import re
import shutil
import sys
import tomllib
from pathlib import Path

from docutils import nodes
from docutils.utils.math import MathError
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.application import Sphinx
from sphinx.util import logging

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

_PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
_URLS = _PROJECT.get("urls", {})

project = "Heatlas"
version = release = _PROJECT["version"]
author = copyright = _PROJECT["authors"][0]["name"]
html_baseurl = _URLS.get("Documentation", "")
html_theme_options = {"source_repository": _URLS["Repository"]} if "Repository" in _URLS else {}
extensions = ["myst_parser", "sphinx.ext.autodoc", "numpydoc", "sphinx_gallery.gen_gallery"]
exclude_patterns = ["_build", "examples", "sg_execution_times.rst"]

html_theme = "furo"
html_title = "Heatlas"
html_show_sourcelink = False
html_show_sphinx = False
html_show_search_summary = False  # would be fetched, which browsers refuse for pages opened as files
html_math_renderer = "mathml"  # the others load a script

sphinx_gallery_conf = {
    "examples_dirs": "examples", "gallery_dirs": "auto_examples",  # written anew by every build
    "filename_pattern": r"\.py$", "within_subsection_order": "FileNameSortKey",
    "plot_gallery": (ROOT / "demo" / "run" / "report.html").is_file(),
    "abort_on_example_error": True, "show_memory": False, "download_all_examples": False, "min_reported_time": 1e6,
    "write_computation_times": False,  # that page loads scripts from the network
}  # fmt: skip
myst_enable_extensions = ["attrs_inline", "dollarmath"]
myst_heading_anchors = 4  # as on GitHub
myst_dmath_double_inline = True

default_role = "py:obj"
numpydoc_show_class_members = False
autodoc_typehints = "none"  # numpydoc states types
autodoc_member_order = "bysource"

_log = logging.getLogger(__name__)
_SAMPLE = "sample_report"
_ANCHOR = re.compile(r'^<a id="([^"]+)"></a>$', re.MULTILINE)
_BARE_FRACTION = re.compile(r"frac\s*[^\s{]")
_EXAMPLE = re.compile(r"\]\(((?:\.\./)*)examples/(?:(\w+)\.py|README\.rst)\)")
_PAGE_OF_SAMPLE = re.compile(rf"\]\(({_SAMPLE}/[^)\s]+)\)")


def _math(writer: nodes.GenericNodeVisitor, node: nodes.Element) -> None:
    """Write an equation as MathML, which browsers draw without a script."""
    block = isinstance(node, nodes.math_block)
    try:
        if _BARE_FRACTION.search(node.astext()):
            raise MathError("write \\frac{1}{2}, since \\frac12 is read as a fraction with 12 above the line")
        markup = tex2mathml(node.astext(), as_block=block)
    except MathError as error:
        _log.warning("equation: %s", error, location=node)
        raise nodes.SkipNode from error
    writer.body.append(f'<div class="math">{markup}</div>' if block else markup)
    raise nodes.SkipNode


def _as_myst(app: Sphinx, name: str, source: list[str]) -> None:
    """Write as MyST what GitHub reads: anchors, and links to examples and to the sample report, which is no page."""
    source[0] = _EXAMPLE.sub(lambda link: f"]({link[1]}auto_examples/{link[2] or 'index'}.rst)", source[0])
    source[0] = _ANCHOR.sub(r"(\1)=", _PAGE_OF_SAMPLE.sub(r"](\1){.external}", source[0]))


def _copy_sample(app: Sphinx, failure: Exception | None) -> None:
    if failure is None and (Path(app.srcdir) / _SAMPLE).is_dir():
        shutil.copytree(Path(app.srcdir) / _SAMPLE, Path(app.outdir) / _SAMPLE, dirs_exist_ok=True)


def setup(app: Sphinx) -> None:
    """Register what no extension does."""
    app.add_html_math_renderer("mathml", (_math, None), (_math, None))
    app.connect("source-read", _as_myst)
    app.connect("build-finished", _copy_sample)
