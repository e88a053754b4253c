"""Facts of a statement's text that the runner needs: its kind, names, order and limit. It parses no SQL."""

import re

_TOKEN = re.compile(
    r"""
    (?P<skip>\s+|--[^\n]*|/\*.*?\*/)
  | (?P<text>[eE]?'(?:[^']|'')*'|\$\$.*?\$\$)
  | (?P<quoted>"(?:[^"]|"")*"|`[^`]*`)
  | (?P<number>\d+(?:\.\d*)?(?:[eE][+-]?\d+)?|\.\d+(?:[eE][+-]?\d+)?)
  | (?P<word>[^\W\d]\w*)
  | (?P<sign>\|\||<>|<=|>=|!=|==|::|//|\*\*|.)
    """,
    re.VERBOSE | re.DOTALL,
)


def tokens(sql):
    """(kind, text, start, depth) of each token; depth counts brackets that are open around it."""
    depth, found = 0, []
    for match in _TOKEN.finditer(sql):
        kind, text = match.lastgroup, match.group()
        if kind == "skip":
            continue
        if text in (")", "]", "}"):
            depth -= 1
        found.append((kind, text, match.start(), depth))
        if text in ("(", "[", "{"):
            depth += 1
    return found


def keyword(sql):
    """The first word, in capitals; "(" where a bracket stands first."""
    for kind, text, _, _ in tokens(sql):
        return text.upper() if kind == "word" or text == "(" else ""
    return ""


def is_query(sql):
    """True of what has rows of its own: SELECT, WITH, VALUES, FROM, TABLE or a bracket; one statement only."""
    if keyword(sql) not in ("SELECT", "WITH", "VALUES", "FROM", "TABLE", "("):
        return False
    found = tokens(sql)
    inner = [index for index, token in enumerate(found) if token[1] == ";"]
    if any(index != len(found) - 1 for index in inner):
        return False
    words = {text.upper() for kind, text, _, depth in found if kind == "word" and depth == 0}
    return not words & {"INSERT", "UPDATE", "DELETE", "MERGE"} and "INTO" not in words


def names(sql):
    """All names in small letters, quoted or not."""
    return {
        text.strip('"`').lower() for kind, text, _, _ in tokens(sql) if kind in ("word", "quoted")
    }


def words(sql):
    """All words outside of texts and quoted names, in capitals."""
    return [text.upper() for kind, text, _, _ in tokens(sql) if kind == "word"]


def signs(sql):
    """All operators and other signs."""
    return [text for kind, text, _, _ in tokens(sql) if kind == "sign"]


def _clause(sql, *clause):
    """The index of the last such clause that stands outside of brackets, and the tokens."""
    found = tokens(sql)
    length = len(clause)
    for index in range(len(found) - length, -1, -1):
        part = found[index : index + length]
        if (
            all(one[3] == 0 and one[0] == "word" for one in part)
            and tuple(one[1].upper() for one in part) == clause
        ):
            return index, found
    return None, found


def order_by(sql):
    """The items of the outermost ORDER BY as texts, or None where there is none."""
    index, found = _clause(sql, "ORDER", "BY")
    if index is None:
        return None
    items, item = [], []
    for kind, text, start, depth in found[index + 2 :]:
        ends = depth == 0 and (
            text == ";" or (kind == "word" and text.upper() in ("LIMIT", "OFFSET", "FETCH"))
        )
        if ends or (depth == 0 and text == ","):
            items.append(item)
            item = []
            if ends:
                break
            continue
        item.append((text, start))
    if item:
        items.append(item)
    return [sql[one[0][1] : one[-1][1] + len(one[-1][0])].strip() for one in items if one]


def without_limit(sql):
    """The statement without its outermost LIMIT, OFFSET and FETCH, or None where it has none."""
    starts = []
    for word in ("LIMIT", "OFFSET", "FETCH"):
        index, found = _clause(sql, word)
        if index is not None:
            starts.append(found[index][2])
    return sql[: min(starts)] if starts else None
