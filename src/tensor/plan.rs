//! From a schema and options to a plan: every choice is made, and every mistake found, before any
//! row.

use std::collections::BTreeMap;

use arrow::datatypes::{DataType, Field, Schema};

use super::codes::{CODE, Codes};
use super::column::{Column, Fixed, Kind};
use super::dtype::DType;
use super::leaf::Leaf;
use super::list::{List, ListLayout, item_field};
use super::nulls::Policy;
use super::options::{NullPolicy, Nulls, Pad, TensorOptions};
use super::shape::FixedShape;
use super::spec::{OutputKind, OutputSpec};
use super::stack::Stack;
use super::text::is_binary;
use crate::matrix::MatrixColumns;
use crate::{Error, ErrorKind, Result, list_names, suggestion};

/// The plan of a conversion.
#[derive(Debug, Default)]
pub(super) struct Plan {
    pub(super) outputs: Vec<OutputSpec>,
    pub(super) columns: Vec<Column>,
    pub(super) stacks: Vec<Stack>,
    /// Type of each slot.
    pub(super) slots: Vec<DType>,
    /// How many outputs are strings, and how many are dictionaries.
    pub(super) texts: usize,
    pub(super) categories: usize,
}

impl Plan {
    pub(super) fn try_new(schema: &Schema, options: &TensorOptions) -> Result<Self> {
        let mut planner = Planner { options, plan: Self::default(), names: BTreeMap::new() };
        for field in schema.fields() {
            planner.collect_names(field.name(), field.data_type());
        }
        planner.check_options()?;
        let stacked = |name: &str| {
            options.stack.iter().any(|(_, columns)| columns.iter().any(|column| column == name))
        };
        let mut outputs = Outputs::default();
        for (index, field) in schema.fields().iter().enumerate() {
            if !stacked(field.name()) {
                planner.field(field, &[index], None, &mut outputs)?;
            }
        }
        for (name, columns) in &options.stack {
            planner.stack(schema, name, columns, &mut outputs)?;
        }
        planner.plan.outputs = outputs.specs;
        Ok(planner.plan)
    }

    /// Returns true if every byte of every slot is written, for any rows. Lists leave out bytes
    /// that they know to be zero.
    pub(super) fn fills_slots(&self) -> bool {
        !self.columns.iter().any(|column| matches!(column.kind, Kind::List(_)))
    }

    /// The columns of stacks whose numbers lie in memory as the stack has them, and that no other
    /// stack has.
    pub(super) fn matrices(&self) -> Vec<MatrixColumns> {
        let mut uses: BTreeMap<usize, usize> = BTreeMap::new();
        let stacked = self.stacks.iter().flat_map(|stack| &stack.columns);
        stacked.for_each(|column| *uses.entry(column.path[0]).or_default() += 1);
        let is_matrix = |stack: &Stack| {
            let item = &stack.columns[0].data_type;
            stack.columns.iter().all(|column| match &column.kind {
                Kind::Fixed { fixed, .. } => {
                    column.data_type == *item
                        && fixed.leaf.copies(fixed.dtype)
                        && uses[&column.path[0]] == 1
                }
                _ => false,
            })
        };
        let stacks = self.stacks.iter().enumerate().filter(|(_, stack)| is_matrix(stack));
        stacks
            .map(|(number, stack)| {
                let columns = stack.columns.iter().map(|column| column.path[0]).collect();
                MatrixColumns { stack: number, columns }
            })
            .collect()
    }

    /// Takes `matrices` in place of their columns, which begin at column `first`; `left` says which
    /// places other columns have then.
    pub(super) fn with_matrices(
        &mut self,
        matrices: &[MatrixColumns],
        left: &[Option<usize>],
        first: usize,
        schema: &Schema,
    ) {
        let stacked = self.stacks.iter_mut().flat_map(|stack| &mut stack.columns);
        for column in self.columns.iter_mut().chain(stacked) {
            if let Some(place) = left[column.path[0]] {
                column.path[0] = place;
            }
        }
        for (place, matrix) in (first..).zip(matrices) {
            let stack = &mut self.stacks[matrix.stack];
            let Kind::Fixed { fixed, slot } = &stack.columns[0].kind else { continue };
            let (width, leaf, dtype) = (stack.columns.len(), fixed.leaf, fixed.dtype);
            let fixed = Fixed { leaf, dtype, depth: 1, width, patch: None, covers_elements: true };
            stack.matrix = Some(Column {
                name: schema.field(place).name().clone(),
                data_type: schema.field(place).data_type().clone(),
                path: vec![place],
                policy: stack.columns[0].policy.clone(),
                mask: None,
                kind: Kind::Fixed { fixed, slot: *slot },
            });
        }
    }
}

/// The outputs of one level, and the owner of each name.
#[derive(Default)]
struct Outputs {
    specs: Vec<OutputSpec>,
    taken: BTreeMap<String, String>,
}

impl Outputs {
    fn push(&mut self, name: String, origin: String, kind: OutputKind) -> Result<()> {
        if let Some(other) = self.taken.get(&name) {
            return Err(Error::config(format!(
                "two outputs would be named {name:?}: {other} and {origin}; rename one of them (a column \
                 with AS in SQL)"
            )));
        }
        self.taken.insert(name.clone(), origin);
        self.specs.push(OutputSpec { name, masks: None, kind });
        Ok(())
    }

    /// Adds the mask of the output before it.
    fn push_mask(&mut self, of: &str, origin: String, kind: OutputKind) -> Result<()> {
        self.push(format!("{of}_mask"), origin, kind)?;
        if let Some(mask) = self.specs.last_mut() {
            mask.masks = Some(of.to_owned());
        }
        Ok(())
    }
}

struct Planner<'a> {
    options: &'a TensorOptions,
    plan: Plan,
    /// Every column and struct field by its dotted name.
    names: BTreeMap<String, DataType>,
}

/// The properties that a field inherits from the struct around it.
#[derive(Clone, Copy)]
struct Parent<'a> {
    name: &'a str,
    policy: &'a Policy,
    nullable: bool,
}

impl Planner<'_> {
    fn collect_names(&mut self, name: &str, data_type: &DataType) {
        self.names.insert(name.to_owned(), data_type.clone());
        if let DataType::Struct(fields) = data_type {
            for field in fields {
                self.collect_names(&format!("{name}.{}", field.name()), field.data_type());
            }
        }
    }

    fn unknown(&self, option: &str, name: &str) -> Error {
        let names: Vec<&str> = self.names.keys().map(String::as_str).collect();
        Error::config(format!(
            "{option}: unknown column {name:?}{}; the columns are {}",
            suggestion(name, names.iter().copied()),
            list_names(&names),
        ))
    }

    /// Every column that an option names exists and is of a type that the option is for.
    fn check_options(&self) -> Result<()> {
        if let Nulls::Columns(columns) = &self.options.nulls
            && let Some(name) = columns.keys().find(|name| !self.names.contains_key(*name))
        {
            return Err(self.unknown("nulls", name));
        }
        for name in self.options.pad.keys() {
            let data_type = self.names.get(name).ok_or_else(|| self.unknown("pad", name))?;
            if item_field(data_type).is_none() {
                return Err(Error::config(format!(
                    "pad: column {name:?} is {data_type}, not a list of variable length; remove it from \
                     `pad`"
                )));
            }
        }
        for name in self.options.categories.keys() {
            let data_type = self.names.get(name).ok_or_else(|| self.unknown("categories", name))?;
            let fits =
                matches!(data_type, DataType::Dictionary(_, _)) || is_binary(data_type).is_some();
            if !fits {
                return Err(Error::config(format!(
                    "categories: column {name:?} is {data_type}, not a string, binary or dictionary \
                     column; remove it from `categories`"
                )));
            }
        }
        Ok(())
    }

    fn slot(&mut self, dtype: DType) -> usize {
        self.plan.slots.push(dtype);
        self.plan.slots.len() - 1
    }

    fn field(
        &mut self,
        field: &Field,
        path: &[usize],
        parent: Option<Parent<'_>>,
        outputs: &mut Outputs,
    ) -> Result<()> {
        let name = match parent {
            Some(parent) => format!("{}.{}", parent.name, field.name()),
            None => field.name().clone(),
        };
        let policy = Policy::of(&self.options.nulls, &name, parent.map(|parent| parent.policy));
        let nullable = field.is_nullable() || parent.is_some_and(|parent| parent.nullable);
        let context = Context { name: &name, field, policy: &policy, nullable };
        let (kind, output) = match field.data_type() {
            DataType::Struct(fields) => {
                let below = Parent { name: &name, policy: &policy, nullable };
                let mut inner = Outputs::default();
                for (index, field) in fields.iter().enumerate() {
                    self.field(field, &[path, &[index]].concat(), Some(below), &mut inner)?;
                }
                let covers_nulls = match policy.rule {
                    NullPolicy::Error => false,
                    NullPolicy::Mask => nullable,
                    // Nulls are passed down to the fields, which follow the policy or refuse them.
                    NullPolicy::Nan | NullPolicy::Fill(_) => true,
                };
                (Kind::Struct { covers_nulls }, OutputKind::Struct { fields: inner.specs })
            }
            data_type if item_field(data_type).is_some() => self.list(context)?,
            data_type => {
                let fixed = FixedShape::of(field, self.options.decimal)?;
                match (fixed, is_binary(data_type)) {
                    (Some(shape), _) => self.fixed(context, shape)?,
                    (None, Some(binary)) if !self.options.categories.contains_key(&name) => {
                        let patch = policy.text(&name, data_type, binary, nullable)?;
                        self.plan.texts += 1;
                        (Kind::Text { patch }, OutputKind::Text { index: self.plan.texts - 1 })
                    }
                    _ => self.codes(context)?,
                }
            }
        };
        outputs.push(field.name().clone(), format!("the column {name:?}"), output)?;
        let masked = policy.rule == NullPolicy::Mask && field.is_nullable();
        let mask = masked.then(|| self.slot(DType::Bool));
        if let Some(slot) = mask {
            let output = OutputKind::Dense {
                slot,
                dtype: DType::Bool,
                shape: Vec::new(),
                permutation: None,
            };
            let origin = format!("the mask of column {name:?}");
            outputs.push_mask(field.name(), origin, output)?;
        }
        let data_type = field.data_type().clone();
        self.plan.columns.push(Column { name, data_type, path: path.to_vec(), policy, mask, kind });
        Ok(())
    }

    fn fixed(&mut self, context: Context<'_>, shape: FixedShape) -> Result<(Kind, OutputKind)> {
        let dtype = shape.leaf.dtype;
        let fixed = context.fixed(&shape, dtype)?;
        let slot = self.slot(dtype);
        let FixedShape { shape, permutation, .. } = shape;
        Ok((Kind::Fixed { fixed, slot }, OutputKind::Dense { slot, dtype, shape, permutation }))
    }

    fn list(&mut self, context: Context<'_>) -> Result<(Kind, OutputKind)> {
        let item = item_field(context.field.data_type()).map(|item| item.as_ref());
        let shape = match item {
            Some(item) => FixedShape::of(item, self.options.decimal)?,
            None => None,
        };
        let Some(FixedShape { leaf, depth, shape, permutation: None }) = shape else {
            return Err(unsupported(context.name, context.field.data_type()));
        };
        let dtype = leaf.dtype;
        let width = shape.iter().product();
        // A mask marks whole rows, so that it cannot speak for a null inside a list.
        let patch = match context.policy.rule {
            NullPolicy::Mask => None,
            _ => context.element(dtype)?,
        };
        let null_is_empty = context.policy.rule == NullPolicy::Mask && context.nullable;
        let (layout, output) = match self.options.pad.get(context.name) {
            None => {
                let (values, offsets) = (self.slot(dtype), self.slot(DType::Int64));
                let output = OutputKind::Jagged { values, offsets, dtype, shape };
                (ListLayout::Jagged { values, offsets }, output)
            }
            Some(Pad { value, max_length }) => {
                let max_length = *max_length;
                let padding = dtype.encode(value).ok_or_else(|| {
                    Error::config(format!(
                        "pad: {value} does not fit column {:?}, whose elements are {dtype}; choose a \
                         {dtype} value",
                        context.name
                    ))
                })?;
                let slot = self.slot(dtype);
                let output = OutputKind::Padded { slot, dtype, shape, max_length };
                (ListLayout::Padded { slot, value: padding, max_length }, output)
            }
        };
        Ok((Kind::List(List { leaf, depth, width, patch, null_is_empty, layout }), output))
    }

    fn codes(&mut self, context: Context<'_>) -> Result<(Kind, OutputKind)> {
        let (name, data_type) = (context.name, context.field.data_type());
        let categories = self.options.categories.get(name);
        let codes = Codes::try_new(name, data_type, self.options.decimal, categories)?;
        let Some(mut codes) = codes else { return Err(unsupported(name, data_type)) };
        codes.follow(context.policy, name, data_type, context.nullable)?;
        let slot = self.slot(CODE);
        let output = if codes.is_fixed() {
            OutputKind::Dense { slot, dtype: CODE, shape: Vec::new(), permutation: None }
        } else {
            self.plan.categories += 1;
            OutputKind::Encoded { codes: slot, categories: self.plan.categories - 1 }
        };
        Ok((Kind::Codes { codes, slot }, output))
    }

    fn stack(
        &mut self,
        schema: &Schema,
        name: &str,
        columns: &[String],
        outputs: &mut Outputs,
    ) -> Result<()> {
        if columns.is_empty() {
            return Err(Error::config(format!(
                "stack: {name:?} has no columns; name at least one, or remove it"
            )));
        }
        let mut packed: Vec<(usize, &Field, FixedShape)> = Vec::with_capacity(columns.len());
        for column in columns {
            let Some((index, field)) = schema.column_with_name(column) else {
                if self.names.contains_key(column) {
                    return Err(Error::config(format!(
                        "stack: {name:?} cannot pack {column:?}, which is a field of a struct; select it as a column \
                         of its own, for example SELECT s['f'] AS f"
                    )));
                }
                return Err(self.unknown(&format!("stack {name:?}"), column));
            };
            if packed.iter().any(|(other, ..)| *other == index) {
                return Err(Error::config(format!(
                    "stack: {name:?} names column {column:?} twice; name it once"
                )));
            }
            let shape = FixedShape::of(field, self.options.decimal)?
                .filter(|_| Leaf::is_numeric(field.data_type()))
                .ok_or_else(|| {
                    Error::config(format!(
                        "stack: {name:?} cannot pack column {column:?} of type {}; allowed are integers, \
                         floats, decimals and booleans: cast it in SQL, or take it out of the stack",
                        field.data_type()
                    ))
                })?;
            packed.push((index, field, shape));
        }
        let dtypes: Vec<DType> = packed.iter().map(|(_, _, shape)| shape.leaf.dtype).collect();
        let dtype = DType::common(&dtypes).unwrap_or(DType::Float32);
        let slot = self.slot(dtype);
        let mut members = Vec::with_capacity(packed.len());
        for (index, field, shape) in packed {
            let policy = Policy::of(&self.options.nulls, field.name(), None);
            let nullable = field.is_nullable();
            let context = Context { name: field.name(), field, policy: &policy, nullable };
            let fixed = context.fixed(&shape, dtype)?;
            members.push(Column {
                name: field.name().clone(),
                data_type: field.data_type().clone(),
                path: vec![index],
                mask: None,
                policy,
                kind: Kind::Fixed { fixed, slot },
            });
        }
        let matrix = |slot, dtype| {
            let shape = vec![columns.len()];
            OutputKind::Dense { slot, dtype, shape, permutation: None }
        };
        outputs.push(name.to_owned(), format!("the stack {name:?}"), matrix(slot, dtype))?;
        let is_masked = |column: &Column| {
            column.policy.rule == NullPolicy::Mask && schema.field(column.path[0]).is_nullable()
        };
        let mask = members.iter().any(is_masked).then(|| self.slot(DType::Bool));
        if let Some(slot) = mask {
            let origin = format!("the mask of stack {name:?}");
            outputs.push_mask(name, origin, matrix(slot, DType::Bool))?;
        }
        self.plan.stacks.push(Stack { columns: members, slot, mask, matrix: None });
        Ok(())
    }
}

/// The facts that planning one column needs.
#[derive(Clone, Copy)]
struct Context<'a> {
    name: &'a str,
    field: &'a Field,
    policy: &'a Policy,
    /// True where the field or a struct around it may be null.
    nullable: bool,
}

impl Context<'_> {
    fn element(&self, dtype: DType) -> Result<Option<super::dtype::Scalar>> {
        self.policy.element(self.name, self.field.data_type(), dtype, self.nullable)
    }

    fn fixed(&self, shape: &FixedShape, dtype: DType) -> Result<Fixed> {
        let patch = self.element(dtype)?;
        let covers_elements = patch.is_some() && self.policy.rule != NullPolicy::Mask;
        let width = shape.shape.iter().product();
        Ok(Fixed { leaf: shape.leaf, dtype, depth: shape.depth, width, patch, covers_elements })
    }
}

fn unsupported(name: &str, data_type: &DataType) -> Error {
    Error::new(
        ErrorKind::UnsupportedType,
        format!(
            "column {name:?} has type {data_type}, which has no tensor form; cast it in SQL, leave it \
             out of the query, or choose output_format=\"arrow\""
        ),
    )
}
