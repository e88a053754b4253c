//! A split, as `sharding/plan.rs` looks at it.

pub struct Split {
    pub bytes: u64,
    pub rows: Option<u64>,
}

/// Where rows are cut into batches, as `stream/` asks for it.
#[derive(Clone, Copy, Debug)]
pub struct BatchEnds {
    pub every: u64,
    pub at: u64,
    pub turns: bool,
}
