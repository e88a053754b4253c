//! Numbers in which totals are kept, twice as wide as the values.

use std::fmt::Debug;

use arrow::array::ArrowPrimitiveType;
use arrow::datatypes::{DataType, i256};

pub(super) fn wide_type<W: ArrowPrimitiveType>() -> DataType {
    match W::DATA_TYPE {
        DataType::Decimal128(..) => DataType::Decimal128(38, 0),
        _ => DataType::Decimal256(76, 0),
    }
}

/// A number that totals are kept in.
pub(super) trait Wide: Copy + Default + Send + Sync + Debug + 'static {
    fn plus(self, other: Self) -> Option<Self>;
    fn minus(self, other: Self) -> Option<Self>;
    fn widest(self) -> i256;
}

impl Wide for i128 {
    fn plus(self, other: Self) -> Option<Self> {
        self.checked_add(other)
    }

    fn minus(self, other: Self) -> Option<Self> {
        self.checked_sub(other)
    }

    fn widest(self) -> i256 {
        i256::from_i128(self)
    }
}

impl Wide for i256 {
    fn plus(self, other: Self) -> Option<Self> {
        self.checked_add(other)
    }

    fn minus(self, other: Self) -> Option<Self> {
        self.checked_sub(other)
    }

    fn widest(self) -> i256 {
        self
    }
}

/// A value as a part of a total.
pub(super) trait Widen<W> {
    fn widen(self) -> W;
}

impl<T: Into<i128>> Widen<i128> for T {
    fn widen(self) -> i128 {
        self.into()
    }
}

impl Widen<i256> for i128 {
    fn widen(self) -> i256 {
        i256::from_i128(self)
    }
}

impl Widen<i256> for i256 {
    fn widen(self) -> i256 {
        self
    }
}
