"""Makes docs/papers.md: which equation of which paper is computed where, and which tests hold it.

The source is the ``Ref:`` lines of docstrings, written ``Ref: KEY, PLACE — WHAT``. Every KEY must stand in ``PAPERS``.
Usage: make_papers_page.py [--check]   (with --check nothing is written; exit code 1 if the page is not up to date)
"""
# ruff: noqa: E501 - a title stands in one line

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = "leakgauge"
PAGE = Path("docs/papers.md")

PAPERS: dict[str, str] = {
    "Abadi et al. 2016": "Abadi, Chu, Goodfellow, McMahan, Mironov, Talwar, Zhang: *Deep Learning with Differential Privacy*. CCS 2016, arXiv:1607.00133",
    "APRIL (Lu et al. 2022)": "Lu, Zhang, Zhao, He, Cheng: *APRIL: Finding the Achilles' Heel on Privacy for Vision Transformers*. CVPR 2022, arXiv:2112.14087",
    "Deng et al. 2021": "Deng, Wang, Li, Wang, Shang, Liu, Rajasekaran, Ding: *TAG: Gradient Attack on Transformer-based Language Models*. Findings of EMNLP 2021, arXiv:2103.06819",
    "Dimitrov et al. 2022": "Dimitrov, Balunović, Konstantinov, Vechev: *Data Leakage in Federated Averaging*. Transactions on Machine Learning Research 2022, arXiv:2206.12395",
    "Geiping et al. 2020": "Geiping, Bauermeister, Dröge, Moeller: *Inverting Gradients: How easy is it to break privacy in federated learning?* NeurIPS 2020, arXiv:2003.14053",
    "He et al. 2015": "He, Zhang, Ren, Sun: *Deep Residual Learning for Image Recognition*. CVPR 2016, arXiv:1512.03385",
    "He et al. 2016": "He, Zhang, Ren, Sun: *Identity Mappings in Deep Residual Networks*. ECCV 2016, arXiv:1603.05027",
    "Horé 2010": "Horé, Ziou: *Image Quality Metrics: PSNR vs. SSIM*. ICPR 2010",
    "Huang et al. 2021": "Huang, Gupta, Song, Li, Arora: *Evaluating Gradient Inversion Attacks and Defenses in Federated Learning*. NeurIPS 2021, arXiv:2112.00059",
    "Jacob et al. 2018": "Jacob, Kligys, Chen, Zhu, Tang, Howard, Adam, Kalenichenko: *Quantization and Training of Neural Networks for Efficient Integer-Arithmetic-Only Inference*. CVPR 2018, arXiv:1712.05877",
    "Jamieson and Talwalkar 2016": "Jamieson, Talwalkar: *Non-stochastic Best Arm Identification and Hyperparameter Optimization*. AISTATS 2016, arXiv:1502.07943",
    "Kingma and Ba 2015": "Kingma, Ba: *Adam: A Method for Stochastic Optimization*. ICLR 2015, arXiv:1412.6980",
    "Lewis 1995": "Lewis: *Fast Template Matching*. Vision Interface 1995",
    "Lin et al. 2018": "Lin, Han, Mao, Wang, Dally: *Deep Gradient Compression*. ICLR 2018, arXiv:1712.01887",
    "Loshchilov and Hutter 2019": "Loshchilov, Hutter: *Decoupled Weight Decay Regularization*. ICLR 2019, arXiv:1711.05101",
    "McMahan et al. 2017": "McMahan, Moore, Ramage, Hampson, Agüera y Arcas: *Communication-Efficient Learning of Deep Networks from Decentralized Data*. AISTATS 2017, arXiv:1602.05629",
    "Phong et al. 2018": "Phong, Aono, Hayashi, Wang, Moriai: *Privacy-Preserving Deep Learning via Additively Homomorphic Encryption*. IEEE Transactions on Information Forensics and Security, 2018",
    "Valadi et al. 2026": "Valadi, Åkesson, Östman, Hoseini, Toor, Hellander: *Practical Feasibility of Gradient Inversion Attacks in Federated Learning*. 2026",
    "Wainakh et al. 2022": "Wainakh, Ventola, Müßig, Keim, Garcia Cordero, Zimmer, Grube, Kersting, Mühlhäuser: *User-Level Label Leakage from Gradients in Federated Learning*. PoPETs 2022, arXiv:2105.09369",
    "Wang 2004": "Wang, Bovik, Sheikh, Simoncelli: *Image Quality Assessment: From Error Visibility to Structural Similarity*. IEEE Transactions on Image Processing, 2004",
    "Yin et al. 2021": "Yin, Mallya, Vahdat, Alvarez, Kautz, Molchanov: *See through Gradients: Image Batch Recovery via GradInversion*. CVPR 2021, arXiv:2104.07586",
    "Zhang 2018": "Zhang, Isola, Efros, Shechtman, Wang: *The Unreasonable Effectiveness of Deep Features as a Perceptual Metric*. CVPR 2018, arXiv:1801.03924",
    "Zhao et al. 2020": "Zhao, Mopuri, Bilen: *iDLG: Improved Deep Leakage from Gradients*. 2020, arXiv:2001.02610",
    "Zhu et al. 2019": "Zhu, Liu, Han: *Deep Leakage from Gradients*. NeurIPS 2019, arXiv:1906.08935",
}  # fmt: skip
ALIASES = {"Zhu, Liu, Han 2019": "Zhu et al. 2019"}

KEY = re.compile(r"(?P<key>.+?\b\d{4}\b\)?)(?:,\s*)?(?P<rest>.*)")
HEAD = """# Papers: equation, function, test

Made by `make papers` from the `Ref:` lines of the docstrings; do not edit by hand. A test is listed when it imports the
package and names the function. Tests that run over all attacks, defenses or channels at once are not listed again here.
"""


@dataclass(frozen=True)
class Entry:
    """One reference: a paper's key, the place in it, what is computed there, and by which of our names."""

    key: str
    place: str
    what: str
    file: Path
    name: str
    used_as: tuple[str, ...]


def entries(source: Path) -> Iterator[Entry]:
    """The references of all docstrings under ``source``, in the order of files and lines."""
    for file in sorted(source.rglob("*.py")):
        tree = ast.parse(file.read_text(encoding="utf-8"), str(file))
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.Module):
                name = "" if isinstance(node, ast.Module) else node.name
                for key, place, what in references(ast.get_docstring(node) or ""):
                    yield Entry(key, place, what, file, name, _used_as(name, tree))


def references(docstring: str) -> Iterator[tuple[str, str, str]]:
    """(key, place, what) of every reference of a docstring: its first sentence, which may name several by semicolons."""
    for paragraph in re.split(r"\n\s*\n", docstring):
        for text in re.split(r"(?:^|\n)\s*Ref:\s*", paragraph)[1:]:
            sentence = re.split(r"\. (?=[A-Z][a-z]+ )", " ".join(text.split()))[0].rstrip(".")
            for part in re.split(r"; (?=[A-Z].*?\b\d{4}\b,)", sentence):
                found = KEY.match(part)
                if found is None:
                    raise SystemExit(f"cannot read the reference {part!r}; write: Ref: KEY, PLACE — WHAT")
                key = ALIASES.get(found["key"], found["key"])
                if key not in PAPERS:
                    raise SystemExit(f"unknown paper {key!r}; add it to PAPERS in tools/{Path(__file__).name}")
                place, _, what = found["rest"].partition(" — ")
                yield key, place, what


def _used_as(name: str, tree: ast.Module) -> tuple[str, ...]:
    """Names by which tests meet a thing: its own, or those of a private class's children."""
    if not name.startswith("_"):
        return (name,) if name else ()
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    return tuple(c.name for c in classes if any(isinstance(b, ast.Name) and b.id == name for b in c.bases))


def names_in_tests(tests: Path) -> dict[Path, set[str]]:
    """For every test file that imports the package, all names that occur in it."""
    found: dict[Path, set[str]] = {}
    for file in sorted(tests.rglob("test_*.py")):
        tree = ast.parse(file.read_text(encoding="utf-8"), str(file))
        imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom | ast.Import)]
        if any(PACKAGE in ast.unparse(node) for node in imports):
            used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
            used |= {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
            found[file] = used | {alias.name for node in imports for alias in node.names}
    return found


def page(root: Path) -> str:
    """The whole page for the package and the tests under ``root``."""
    tests = names_in_tests(root / "tests")
    by_key: dict[str, list[Entry]] = {}
    for entry in entries(root / "src" / PACKAGE):
        by_key.setdefault(entry.key, []).append(entry)
    parts = [HEAD]
    for key in sorted(by_key, key=str.casefold):
        rows = "\n".join(_row(entry, tests, root) for entry in by_key[key])
        parts.append(f"## {key}\n\n{PAPERS[key]}.\n\n| where | what | function | tests |\n|---|---|---|---|\n{rows}\n")
    return "\n".join(parts)


def _row(entry: Entry, tests: dict[Path, set[str]], root: Path) -> str:
    shown = ", ".join(entry.used_as) or entry.file.stem
    code = f"[`{shown}`](../{entry.file.relative_to(root).as_posix()})"
    using = [file.relative_to(root) for file, names in tests.items() if names & set(entry.used_as)]
    links = ", ".join(f"[{file.relative_to('tests').as_posix()}](../{file.as_posix()})" for file in using)
    return f"| {entry.place} | {entry.what} | {code} | {links} |"


def main(arguments: list[str]) -> int:
    target = ROOT / PAGE
    made = page(ROOT)
    if "--check" not in arguments:
        target.write_text(made, encoding="utf-8")
        print(f"written: {PAGE}")
        return 0
    if not target.is_file() or target.read_text(encoding="utf-8") != made:
        print(f"{PAGE} is not up to date; run: make papers")
        return 1
    print(f"{PAGE}: up to date")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
