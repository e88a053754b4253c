//! A function that computes its result anew, and has everything else of the one whose place it
//! takes.

use std::hash::{Hash, Hasher};
use std::sync::Arc;

use arrow::array::ArrayRef;
use arrow::datatypes::DataType;
use datafusion::error::Result;
use datafusion::logical_expr::{ColumnarValue, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl};

use crate::basics::computed;

/// The accessors of a function that has the name, the aliases, the signature and the types of its
/// field `inner`.
macro_rules! accessors_of_inner {
    () => {
        fn as_any(&self) -> &dyn std::any::Any {
            self
        }

        fn name(&self) -> &str {
            self.inner.name()
        }

        fn aliases(&self) -> &[String] {
            self.inner.aliases()
        }

        fn signature(&self) -> &datafusion::logical_expr::Signature {
            self.inner.signature()
        }

        fn return_type(
            &self,
            types: &[arrow::datatypes::DataType],
        ) -> datafusion::error::Result<arrow::datatypes::DataType> {
            self.inner.return_type(types)
        }
    };
}
pub(super) use accessors_of_inner;

/// Computes the result, of the given type, of arguments of one length each.
pub(super) type Compute = fn(&[ArrayRef], &DataType) -> Result<ArrayRef>;

/// The function with the name, the aliases, the signature and the types of another.
pub(super) fn in_place_of(inner: Arc<ScalarUDF>, compute: Compute) -> ScalarUDF {
    ScalarUDF::from(InPlace { inner, compute })
}

#[derive(Debug)]
struct InPlace {
    inner: Arc<ScalarUDF>,
    compute: Compute,
}

// There is one for each name.
impl PartialEq for InPlace {
    fn eq(&self, other: &Self) -> bool {
        self.inner == other.inner
    }
}

impl Eq for InPlace {}

impl Hash for InPlace {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.inner.hash(state);
    }
}

impl ScalarUDFImpl for InPlace {
    accessors_of_inner!();

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        computed(&args, |arrays| (self.compute)(arrays, args.return_field.data_type()))
    }
}
