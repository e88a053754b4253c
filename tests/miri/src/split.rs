//! A split, as `partition/plan.rs` looks at it.

pub struct Split {
    pub bytes: u64,
    pub rows: Option<u64>,
}
