//! Arrow to tensors.
//!
//! ```text
//! schema + TensorOptions ─▶ Converter ─ outputs() ─▶ names, dtypes, shapes: fixed for the run
//!                              │
//! portions (slices of record batches, rows of a window) ─ convert() ─▶ TensorBatch: one Block, one slot per array
//! ```
//!
//! A batch is one allocation. Portions are gathered straight into it, so that each value is copied
//! once, also where it is picked from a window of mixed rows. A column of a portion that is as it
//! will be, in memory that nothing else holds, is not copied at all, but lent. Arrow's shared
//! buffers are never handed out as writable memory. The table of types is `docs/types.md`.

mod batch_slice;
mod block;
mod buffer_ownership;
mod codes;
mod column;
mod convert;
mod dtype;
mod leaf;
mod list;
mod nulls;
mod options;
mod pieces;
mod plan;
mod shape;
mod spec;
mod stack;
mod text;

pub use batch_slice::BatchSlice;
pub use block::{ALIGNMENT, Block, Lent, Slot};
pub(crate) use buffer_ownership::sole_owner;
pub use convert::{Converter, TensorBatch};
pub use dtype::DType;
pub use options::{DecimalFormat, NullPolicy, Nulls, Pad, TensorOptions, Value};
pub use pieces::Pieces;
pub use spec::{OutputKind, OutputSpec};
pub use text::{TextColumn, TextRef};
