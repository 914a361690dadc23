//! Parts of the JSON Schema of a scenario file.

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};

/// A value with a short form `S` and a long form `L`.
pub(crate) fn either<S: JsonSchema, L: JsonSchema>(generator: &mut SchemaGenerator) -> Schema {
    json_schema!({ "anyOf": [S::json_schema(generator), L::json_schema(generator)] })
}
