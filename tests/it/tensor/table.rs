//! `docs/types.md` has a row for every type that Arrow has.

use super::*;

/// Each type's row. A new variant in Arrow fails to compile here, until the table has it.
fn row(data_type: &DataType) -> &'static str {
    match data_type {
        DataType::Null => "Null",
        DataType::Boolean => "Boolean",
        DataType::Int8 => "Int8",
        DataType::Int16 => "Int16",
        DataType::Int32 => "Int32",
        DataType::Int64 => "Int64",
        DataType::UInt8 => "UInt8",
        DataType::UInt16 => "UInt16",
        DataType::UInt32 => "UInt32",
        DataType::UInt64 => "UInt64",
        DataType::Float16 => "Float16",
        DataType::Float32 => "Float32",
        DataType::Float64 => "Float64",
        DataType::Timestamp(..) => "Timestamp",
        DataType::Date32 => "Date32",
        DataType::Date64 => "Date64",
        DataType::Time32(_) => "Time32",
        DataType::Time64(_) => "Time64",
        DataType::Duration(_) => "Duration",
        DataType::Interval(_) => "Interval",
        DataType::Binary => "Binary",
        DataType::FixedSizeBinary(_) => "FixedSizeBinary",
        DataType::LargeBinary => "LargeBinary",
        DataType::BinaryView => "BinaryView",
        DataType::Utf8 => "Utf8",
        DataType::LargeUtf8 => "LargeUtf8",
        DataType::Utf8View => "Utf8View",
        DataType::List(_) => "List",
        DataType::ListView(_) => "ListView",
        DataType::FixedSizeList(..) => "FixedSizeList",
        DataType::LargeList(_) => "LargeList",
        DataType::LargeListView(_) => "LargeListView",
        DataType::Struct(_) => "Struct",
        DataType::Union(..) => "Union",
        DataType::Dictionary(..) => "Dictionary",
        DataType::Decimal32(..) => "Decimal32",
        DataType::Decimal64(..) => "Decimal64",
        DataType::Decimal128(..) => "Decimal128",
        DataType::Decimal256(..) => "Decimal256",
        DataType::Map(..) => "Map",
        DataType::RunEndEncoded(..) => "RunEndEncoded",
    }
}

/// Arrow type and output of each row of the first table.
fn table() -> Vec<(&'static str, &'static str)> {
    let cells = |line: &'static str| {
        let mut cells = line.trim_matches('|').split('|').map(str::trim);
        Some((cells.next()?, cells.next()?))
    };
    include_str!("../../../docs/types.md")
        .lines()
        .skip_while(|line| !line.starts_with("|---"))
        .skip(1)
        .map_while(|line| line.starts_with('|').then(|| cells(line)).flatten())
        .collect()
}

#[test]
fn the_table_says_what_the_converter_does() {
    let table = table();
    assert!(table.len() >= 41, "{} rows found", table.len());
    let decimals = [
        DataType::Decimal32(9, 2),
        DataType::Decimal64(18, 2),
        DataType::Decimal128(38, 2),
        DataType::Decimal256(76, 2),
    ];
    for data_type in leaf_types().iter().chain(&decimals) {
        let (_, output) = table.iter().find(|(name, _)| *name == row(data_type)).unwrap();
        let schema = schema(vec![Field::new("c", data_type.clone(), false)]);
        let converter = Converter::try_new(&schema, &TensorOptions::default()).unwrap();
        let OutputKind::Dense { dtype, .. } = converter.outputs()[0].kind else { panic!() };
        assert_eq!(*output, format!("`{dtype}`"), "{data_type}");
    }
}
