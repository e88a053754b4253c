"""Pieces of HTML: every text is escaped here, and colours follow the page, light or dark."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

__all__ = ["Raw", "box", "failure", "folded", "line", "muted", "sized", "table", "without_secrets"]

# Jupyter gives tables backgrounds, colours and sides of its own; colours set here are mixed with the colour of the text. Its rules name two
# classes, so that ours have to name one twice.
_STYLE = """<style>
.tensorquery{color:inherit;background:none;font-size:13px;line-height:1.45;max-width:100%;overflow-x:auto}
.tensorquery table{border-collapse:collapse;margin:6px 0;color:inherit;background:none;border:none;font-size:12px}
.tensorquery.tensorquery th,.tensorquery.tensorquery td{padding:2px 10px 2px 4px;text-align:left;vertical-align:top;border:none;
border-bottom:1px solid rgba(128,128,128,.35);color:inherit;background:none;white-space:pre;max-width:none}
.tensorquery.tensorquery th{font-weight:600}
.tensorquery.tensorquery td.number,.tensorquery.tensorquery th.number{text-align:right;font-variant-numeric:tabular-nums}
.tensorquery .muted{opacity:.65}
.tensorquery .failure{border-left:3px solid #d5473d;padding:2px 8px;margin:6px 0;white-space:pre-wrap}
.tensorquery pre{color:inherit;background:none;white-space:pre-wrap;margin:4px 0;font-size:12px}
.tensorquery summary{cursor:pointer;opacity:.8}
</style>"""

_SHOWN_TEXT = 60

_HTTP_USER = re.compile(r"(\bhttps?://)[^\s/@'\"]+@", re.IGNORECASE)
_PASSWORD = re.compile(r"(\b[a-z][a-z0-9+.-]*://[^\s/@:'\"]*:)[^\s/@'\"]+@", re.IGNORECASE)
_PARAMETERS = re.compile(r"(\b[a-z][a-z0-9+.-]*://[^\s'\"?]*\?)[^\s'\"]*=[^\s'\"]*", re.IGNORECASE)


class Raw(str):
    """HTML that is not escaped again."""

    __slots__ = ()


def without_secrets(text: str) -> str:
    """`text` without passwords in URLs, and without the parameters that sign one.

    >>> without_secrets("FROM 's3://key:secret@bucket/a' JOIN 'https://host/b?sig=abc'")
    "FROM 's3://key:***@bucket/a' JOIN 'https://host/b?***'"
    >>> without_secrets("abfss://container@account.dfs.core.windows.net/part-?.parquet")
    'abfss://container@account.dfs.core.windows.net/part-?.parquet'
    """
    text = _HTTP_USER.sub(r"\1***@", text)
    text = _PASSWORD.sub(r"\1***@", text)
    return _PARAMETERS.sub(r"\1***", text)


def text_of(value: Any) -> Raw:
    """Anything as HTML: `Raw` stays unchanged, everything else becomes escaped text."""
    return value if isinstance(value, Raw) else Raw(escape(str(value)))


def muted(text: str) -> Raw:
    """Text that steps back."""
    return Raw(f'<span class="muted">{escape(text)}</span>')


def line(*parts: Any) -> Raw:
    """Texts in a line, with dots between them."""
    return Raw("<div>" + " · ".join(text_of(part) for part in parts if part) + "</div>")


def failure(error: BaseException | str) -> Raw:
    """An error in place of the part that could not be shown."""
    text = error if isinstance(error, str) else f"{type(error).__name__}: {error}"
    return Raw(f'<div class="failure">{escape(without_secrets(text))}</div>')


def folded(title: str, content: Raw) -> Raw:
    """Content that is shown on a click."""
    return Raw(f"<details><summary>{escape(title)}</summary>{content}</details>")


def table(titles: Sequence[str], rows: Iterable[Sequence[Any]], numbers: Sequence[bool]) -> Raw:
    """A table.

    Args:
        titles: One for each column.
        rows: A cell for each column, as text or `Raw`; long texts are cut.
        numbers: Whether a column is flush right.
    """
    kinds = [' class="number"' if number else "" for number in numbers]

    def cells(tag: str, values: Sequence[Any]) -> str:
        marked = zip(kinds, values, strict=True)
        return "".join(f"<{tag}{kind}>{_cell(value)}</{tag}>" for kind, value in marked)

    body = "".join(f"<tr>{cells('td', row)}</tr>" for row in rows)
    return Raw(f"<table><thead><tr>{cells('th', titles)}</tr></thead><tbody>{body}</tbody></table>")


def _cell(value: Any) -> str:
    if value is None:
        return muted("null")
    if isinstance(value, Raw):
        return value
    text = str(value)
    if len(text) > _SHOWN_TEXT:
        text = text[: _SHOWN_TEXT - 1] + "…"
    # A line break, or another control character, would tear the row apart.
    return escape("".join(char if char.isprintable() else " " for char in text))


def box(title: str, *parts: Raw | None) -> str:
    """The whole: a title, and the parts below it."""
    inner = "".join(part for part in parts if part)
    return f'{_STYLE}<div class="tensorquery"><div><b>{escape(title)}</b></div>{inner}</div>'


def sized(size: int) -> str:
    """Bytes in words.

    >>> sized(512), sized(3 << 20), sized(5_800_000_000)
    ('512 B', '3.0 MiB', '5.4 GiB')
    """
    number = float(size)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if number < 1024:
            return f"{number:.0f} {unit}" if unit == "B" else f"{number:.1f} {unit}"
        number /= 1024
    return f"{number:.1f} TiB"
