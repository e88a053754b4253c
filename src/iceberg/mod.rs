//! Iceberg tables below their catalogs: the files of a snapshot, the mapping of columns, metadata
//! about values, and deleted rows. Specification: <https://iceberg.apache.org/spec/>.

mod adapt;
mod assign;
mod avro;
mod avro_header;
mod bounds;
pub mod catalog;
mod defaults;
mod deletes;
mod load;
mod manifests;
mod orc;
mod partition_names;
mod partition_text;
mod puffin;
mod read;
mod rename;
mod snapshot;
mod spec;
mod table;
mod types;
mod values;

pub use defaults::{Defaults, children, find_left_out};
pub use deletes::EqualityKeys;
pub use load::load;
pub use manifests::{Entry, live_entries, manifest_list};
pub use partition_text::partition_text;
pub use puffin::{deletion_vector, positions_in, vector_body};
pub use rename::ColumnMap;
pub(crate) use rename::{rebuilt, renamed_primitive};
pub use snapshot::{TravelTo, ancestors, pin, references, time_text};
pub use spec::{DataFile, DeleteFile, DeleteKind, LakeSpec, Storage};
pub use table::LakeTable;
pub use types::arrow_schema;
pub use values::{FileValues, KnownColumn, values_array};
