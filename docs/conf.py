"""The site: ``make docs``. What is no page of its own is written by ``site_pages`` as a build begins."""

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))
import nestax  # noqa: E402
import site_pages  # noqa: E402

# This module is reached through nx.problems, and lies elsewhere.
sys.modules["nestax.problems.networks"] = nestax.problems.networks

project = "nestax"
author = "The nestax developers"
copyright = author
version = release = nestax.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.mathjax",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "sphinx_design",
    "sphinx_gallery.gen_gallery",
    "sphinxcontrib.bibtex",
]
templates_path = ["_templates"]
exclude_patterns = ["index.md", "_build", "_templates", "gallery/*.ipynb", "gallery/*.py"]
suppress_warnings = ["config.cache"]
smartquotes = False  # "--" begins an option

# Pages

myst_enable_extensions = ["dollarmath"]
myst_fence_as_directive = ["math"]
myst_heading_anchors = 3
copybutton_prompt_text = r"\$ |>>> "
copybutton_prompt_is_regexp = True
bibtex_bibfiles = ["reference/references.bib"]
bibtex_default_style = "plain"

# Names: annotations are in the signature, as short as they get.

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autosummary_generate = True
autosummary_ignore_module_all = False
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_custom_sections = [("Holds", "params_style")]
python_maximum_signature_line_length = 88

# The gallery shows the figures that `make gallery` left: building the site computes nothing.

sphinx_gallery_conf = {
    "examples_dirs": "../examples",
    "gallery_dirs": "gallery",
    "filename_pattern": r"\.py$",
    "plot_gallery": False,
    "doc_module": ("nestax",),
    "backreferences_dir": "gallery/backreferences",
    "within_subsection_order": site_pages.place_in_gallery,
    "show_signature": False,
    "remove_config_comments": True,
    "download_all_examples": False,
    "write_computation_times": False,
}

# The look

html_theme = "pydata_sphinx_theme"
html_title = "nestax"
html_logo = "_static/logo.svg"
html_favicon = "_static/logo.svg"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_sourcelink = True
html_sidebars = {"index": [], "faq": []}
html_theme_options = {
    "logo": {"text": "nestax", "alt_text": "nestax"},
    "github_url": "https://github.com/nestax/nestax",
    "header_links_before_dropdown": 9,
    "navbar_align": "left",
    "show_prev_next": False,
    "show_toc_level": 2,
    "secondary_sidebar_items": {
        "*": ["page-toc", "edit-this-page", "sourcelink"],
        # Pages in folders have no file in the repository that could be edited.
        **{f"{folder}/**": ["page-toc"] for folder in ("gallery", *site_pages.WRITTEN)},
    },
    "use_edit_page_button": True,
    "footer_start": ["copyright"],
    "footer_end": ["theme-version"],
    "pygments_light_style": "tango",
}
html_context = {
    "github_user": "nestax",
    "github_repo": "nestax",
    "github_version": "main",
    "doc_path": "docs",
}
#: Not from another computer: the site is read without a connection as well.
mathjax_path = "mathjax/tex-chtml.js"


def setup(app):
    site_pages.write(HERE)
    site_pages.connect(app)
