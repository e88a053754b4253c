//! The field layout of Parquet's footers, page indexes and page headers:
//! <https://github.com/apache/parquet-format/blob/master/src/main/thrift/parquet.thrift>. The
//! `parquet` crate reads a field of these structures as the type it expects, without checking the
//! type that it declares.

use super::thrift::Fields;
use super::thrift::Shape::{Byte, Double, List, Number, Struct, Text, Truth};

/// `FileMetaData`.
pub(super) static FOOTER: Fields = &[
    (1, Number),
    (2, List(&Struct(SCHEMA_ELEMENT))),
    (3, Number),
    (4, List(&Struct(ROW_GROUP))),
    (5, List(&Struct(KEY_VALUE))),
    (6, Text),
    (7, List(&Struct(COLUMN_ORDER))),
    (8, Struct(ENCRYPTION)),
    (9, Text),
];

/// `ColumnIndex`.
pub(super) static COLUMN_INDEX: Fields = &[
    (1, List(&Truth)),
    (2, List(&Text)),
    (3, List(&Text)),
    (4, Number),
    (5, List(&Number)),
    (6, List(&Number)),
    (7, List(&Number)),
];

/// `OffsetIndex`.
pub(super) static OFFSET_INDEX: Fields =
    &[(1, List(&Struct(&[(1, Number), (2, Number), (3, Number)]))), (2, List(&Number))];

/// `PageHeader`.
pub(super) static PAGE_HEADER: Fields = &[
    (1, Number),
    (UNCOMPRESSED_PAGE_SIZE, Number),
    (COMPRESSED_PAGE_SIZE, Number),
    (4, Number),
    (5, Struct(DATA_PAGE)),
    (6, Struct(EMPTY)),
    (7, Struct(&[(1, Number), (2, Number), (3, Truth)])),
    (8, Struct(DATA_PAGE_V2)),
];

/// Fields of a page's header.
pub(super) const UNCOMPRESSED_PAGE_SIZE: i16 = 2;
pub(super) const COMPRESSED_PAGE_SIZE: i16 = 3;
pub(super) const CHECKSUM: usize = 4;

const EMPTY: Fields = &[];

const KEY_VALUE: Fields = &[(1, Text), (2, Text)];

pub(super) const SCHEMA_ELEMENT: Fields = &[
    (1, Number),
    (2, Number),
    (3, Number),
    (4, Text),
    (5, Number),
    (6, Number),
    (7, Number),
    (8, Number),
    (9, Number),
    (10, Struct(LOGICAL_TYPE)),
];

const LOGICAL_TYPE: Fields = &[
    (1, Struct(EMPTY)),
    (2, Struct(EMPTY)),
    (3, Struct(EMPTY)),
    (4, Struct(EMPTY)),
    (5, Struct(&[(1, Number), (2, Number)])),
    (6, Struct(EMPTY)),
    (7, Struct(TIME)),
    (8, Struct(TIME)),
    (10, Struct(&[(1, Byte), (2, Truth)])),
    (11, Struct(EMPTY)),
    (12, Struct(EMPTY)),
    (13, Struct(EMPTY)),
    (14, Struct(EMPTY)),
    (15, Struct(EMPTY)),
    (16, Struct(&[(1, Byte)])),
    (17, Struct(&[(1, Text)])),
    (18, Struct(&[(1, Text), (2, Number)])),
];

const TIME: Fields = &[(1, Truth), (2, Struct(TIME_UNIT))];

const TIME_UNIT: Fields = &[(1, Struct(EMPTY)), (2, Struct(EMPTY)), (3, Struct(EMPTY))];

const COLUMN_ORDER: Fields = &[(1, Struct(EMPTY))];

pub(super) const ROW_GROUP: Fields = &[
    (1, List(&Struct(COLUMN_CHUNK))),
    (2, Number),
    (3, Number),
    (4, List(&Struct(&[(1, Number), (2, Truth), (3, Truth)]))),
    (5, Number),
    (6, Number),
    (7, Number),
];

pub(super) const COLUMN_CHUNK: Fields = &[
    (1, Text),
    (2, Number),
    (3, Struct(COLUMN)),
    (4, Number),
    (5, Number),
    (6, Number),
    (7, Number),
    (8, Struct(&[(1, Struct(EMPTY)), (2, Struct(&[(1, List(&Text)), (2, Text)]))])),
    (9, Text),
];

/// `ColumnMetaData`.
pub(super) const COLUMN: Fields = &[
    (1, Number),
    (2, List(&Number)),
    (3, List(&Text)),
    (4, Number),
    (5, Number),
    (6, Number),
    (7, Number),
    (8, List(&Struct(KEY_VALUE))),
    (9, Number),
    (10, Number),
    (11, Number),
    (12, Struct(STATISTICS)),
    (13, List(&Struct(&[(1, Number), (2, Number), (3, Number)]))),
    (14, Number),
    (15, Number),
    (16, Struct(&[(1, Number), (2, List(&Number)), (3, List(&Number))])),
    (17, Struct(&[(1, Struct(BOUNDING_BOX)), (2, List(&Number))])),
];

const STATISTICS: Fields =
    &[(1, Text), (2, Text), (3, Number), (4, Number), (5, Text), (6, Text), (7, Truth), (8, Truth)];

const BOUNDING_BOX: Fields = &[
    (1, Double),
    (2, Double),
    (3, Double),
    (4, Double),
    (5, Double),
    (6, Double),
    (7, Double),
    (8, Double),
];

const ENCRYPTION: Fields = &[
    (1, Struct(&[(1, Text), (2, Text), (3, Truth)])),
    (2, Struct(&[(1, Text), (2, Text), (3, Truth)])),
];

const DATA_PAGE: Fields =
    &[(1, Number), (2, Number), (3, Number), (4, Number), (5, Struct(STATISTICS))];

const DATA_PAGE_V2: Fields = &[
    (1, Number),
    (2, Number),
    (3, Number),
    (4, Number),
    (5, Number),
    (6, Number),
    (7, Truth),
    (8, Struct(STATISTICS)),
];
