"""ORC files written by hand: what declares more than it holds, which no writer writes."""

LONG, STRING, LIST, STRUCT = 4, 7, 10, 12
"""Kinds of types."""

DATA, LENGTH, DICTIONARY_DATA = 1, 2, 3
"""Kinds of streams."""

DIRECT_V2, DICTIONARY_V2 = 2, 3
"""Encodings."""


def varint(number):
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def message(*fields):
    """A message of protocol buffers, from pairs of a number and a value: an integer or bytes."""
    out = b""
    for number, value in fields:
        if isinstance(value, int):
            out += varint(number << 3) + varint(value)
        else:
            out += varint(number << 3 | 2) + varint(len(value)) + value
    return out


def column(kind, subtypes=(), names=()):
    """A type of the footer."""
    return message(
        (1, kind), *((2, subtype) for subtype in subtypes), *((3, name) for name in names)
    )


def thrice(number):
    """An unsigned integer, three times, as the run-length encoding of version 2 writes it."""
    return b"\x38" + number.to_bytes(8, "big")


def chunk(data, is_original=True):
    """A chunk of a compressed file."""
    return (len(data) << 1 | is_original).to_bytes(3, "little") + data


def orc(types, rows=3, streams=(), encodings=(), compression=0, block=None, packed=None):
    """The bytes of a file of one stripe.

    Args:
        types: Messages of `column`.
        rows: The rows that the stripe declares.
        streams: Column, kind and bytes of each.
        encodings: Encoding and size of the dictionary, by type; the rest is encoded directly.
        compression: Its number in the postscript.
        block: Bytes of a chunk, as the postscript says.
        packed: The footer's section, in place of a chunk that is not compressed.
    """
    framed = chunk if compression else bytes
    data = b"".join(bytes_ for _, _, bytes_ in streams)
    encodings = [*encodings, *[(DIRECT_V2, 0)] * (len(types) - len(encodings))]
    stripe_footer = framed(
        message(
            *((1, message((1, kind), (2, at), (3, len(held)))) for at, kind, held in streams),
            *((2, message((1, kind), (2, size))) for kind, size in encodings),
        )
    )
    stripe = message((1, 3), (2, 0), (3, len(data)), (4, len(stripe_footer)), (5, rows))
    footer = message(
        (1, 3),
        (2, 3 + len(data) + len(stripe_footer)),
        (3, stripe),
        *((4, one) for one in types),
        (6, rows),
    )
    footer = packed or framed(footer)
    sizes = [(1, len(footer)), (2, compression), (5, 0), (6, 6), (8000, b"ORC")]
    postscript = message(*sizes, *([(3, block)] if block else []))
    return b"ORC" + data + stripe_footer + footer + postscript + bytes([len(postscript)])
