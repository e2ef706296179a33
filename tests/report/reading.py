"""What a reader sees of a page."""

from __future__ import annotations

import html
import re


def text_of(page: str) -> str:
    body = re.sub(r"<(style|script)>.*?</\1>", "", page, flags=re.S)
    return html.unescape(" ".join(re.sub(r"<[^>]+>", " ", body.replace("<wbr>", "")).split()))
