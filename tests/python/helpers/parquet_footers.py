"""Parquet files taken apart and put together again, with other numbers in them than their writer put there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

Struct = dict[int, "Value"]
"""Of Thrift's compact protocol, by the numbers of its fields."""

Value = tuple[int, Any]
"""Of a type: as the protocol numbers it."""

TRUE, FALSE, BYTE, DOUBLE, TEXT, LIST, STRUCT = 1, 2, 3, 7, 8, 9, 12

# Fields of `FileMetaData`, `RowGroup`, `ColumnChunk`, `ColumnMetaData`, `PageHeader`, `OffsetIndex`.
SCHEMA, GROUPS, COLUMNS, GROUP_ROWS, METADATA = 2, 4, 1, 3, 3
OFFSET_INDEX, OFFSET_INDEX_BYTES, PAGES = 4, 5, 1


def number_at(data: bytes, at: int) -> tuple[int, int]:
    """Seven bits a byte; and where it ends."""
    number = shift = 0
    while True:
        number |= (data[at] & 0x7F) << shift
        shift, at = shift + 7, at + 1
        if data[at - 1] < 0x80:
            return number, at


def number_of(number: int) -> bytes:
    written = bytearray()
    while number > 0x7F:
        written.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*written, number])


def signed_at(data: bytes, at: int) -> tuple[int, int]:
    number, at = number_at(data, at)
    return (number >> 1) ^ -(number & 1), at


def signed_of(number: int) -> bytes:
    return number_of(((number << 1) ^ (number >> 63)) & ((1 << 64) - 1))


def value_at(data: bytes, at: int, kind: int) -> tuple[Any, int]:
    match kind:
        case 1 | 2:
            return None, at
        case 3:
            return data[at], at + 1
        case 7:
            return data[at : at + 8], at + 8
        case 8:
            length, at = number_at(data, at)
            return data[at : at + length], at + length
        case 9:
            head, at = data[at], at + 1
            count, inner = head >> 4, head & 0x0F
            if count == 15:
                count, at = number_at(data, at)
            items = []
            for _ in range(count):
                if inner in (TRUE, FALSE):
                    item, at = data[at], at + 1
                else:
                    item, at = value_at(data, at, inner)
                items.append(item)
            return (inner, items), at
        case 12:
            return struct_at(data, at)
        case _:
            return signed_at(data, at)


def value_of(kind: int, value: Any) -> bytes:
    match kind:
        case 1 | 2:
            return b""
        case 3:
            return bytes([value])
        case 7:
            return bytes(value)
        case 8:
            return number_of(len(value)) + value
        case 9:
            inner, items = value
            short = len(items) < 15
            head = bytes([(len(items) if short else 15) << 4 | inner])
            rest = b"" if short else number_of(len(items))
            truths = inner in (TRUE, FALSE)
            return (
                head
                + rest
                + b"".join(bytes([item]) if truths else value_of(inner, item) for item in items)
            )
        case 12:
            return struct_of(value)
        case _:
            return signed_of(value)


def struct_at(data: bytes, at: int) -> tuple[Struct, int]:
    fields: Struct = {}
    field = 0
    while head := data[at]:
        at += 1
        if head >> 4:
            field += head >> 4
        else:
            field, at = signed_at(data, at)
        value, at = value_at(data, at, head & 0x0F)
        fields[field] = (head & 0x0F, value)
    return fields, at + 1


def struct_of(fields: Struct) -> bytes:
    written, last = b"", 0
    for field, (kind, value) in sorted(fields.items()):
        step = field - last
        written += bytes([step << 4 | kind]) if 0 < step < 16 else bytes([kind]) + signed_of(field)
        written, last = written + value_of(kind, value), field
    return written + b"\0"


def change(fields: Struct, field: int, value: Any) -> None:
    """Give a field that is there another value."""
    fields[field] = (fields[field][0], value)


class ParquetFile:
    """A Parquet file as two parts: the bytes before the footer, and the parsed footer."""

    def __init__(self, path: Path) -> None:
        data = path.read_bytes()
        start = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
        self.path, self.body = path, bytearray(data[:start])
        self.footer, _ = struct_at(data, start)

    def write(self) -> None:
        footer = struct_of(self.footer)
        end = len(footer).to_bytes(4, "little") + b"PAR1"
        self.path.write_bytes(bytes(self.body) + footer + end)

    def schema(self, place: int) -> Struct:
        return self.footer[SCHEMA][1][1][place]

    def group(self, number: int = 0) -> Struct:
        return self.footer[GROUPS][1][1][number]

    def chunk(self, column: int, group: int = 0) -> Struct:
        return self.group(group)[COLUMNS][1][1][column]

    def metadata(self, column: int, group: int = 0) -> Struct:
        return self.chunk(column, group)[METADATA][1]

    def pages(self, column: int, group: int = 0) -> list[tuple[int, int, Struct]]:
        """Where each page of a chunk begins, where its header ends, and the header."""
        metadata = self.metadata(column, group)
        at = metadata.get(11, metadata[9])[1]
        end, found = at + metadata[7][1], []
        while at < end:
            header, behind = struct_at(self.body, at)
            found.append((at, behind, header))
            at = behind + header[3][1]
        return found

    def page_index(self, column: int, group: int = 0) -> list[Struct]:
        """Of the data pages: where each begins (1), its bytes (2), and its first row (3)."""
        index, _ = struct_at(self.body, self.chunk(column, group)[OFFSET_INDEX][1])
        return index[PAGES][1][1]

    def set_page_index(self, pages: list[Struct], column: int, group: int = 0) -> None:
        chunk = self.chunk(column, group)
        written = struct_of({PAGES: (LIST, (STRUCT, pages))})
        change(chunk, OFFSET_INDEX, len(self.body))
        change(chunk, OFFSET_INDEX_BYTES, len(written))
        self.body += written
