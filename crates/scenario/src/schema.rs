//! The JSON Schema of a scenario file, from which the reference page of its keys is generated. The
//! descriptions are the doc comments of the fields.

use crate::{Scenario, file::Case};
use schemars::{JsonSchema, Schema, SchemaGenerator, generate::SchemaSettings, json_schema};

/// The JSON Schema of a scenario file.
pub fn schema() -> Schema {
    let mut generator = SchemaSettings::draft2020_12().into_generator();
    let mut cases = json_schema!({ "type": "array", "items": generator.subschema_for::<Case>() });
    cases.insert("description".into(), "Variants of the file, which are played side by side. None: the file as it is.".into());
    let mut schema = generator.into_root_schema_for::<Scenario>();
    schema.insert("title".into(), "Scenario file".into());
    if let Some(properties) = schema.get_mut("properties").and_then(serde_json::Value::as_object_mut) {
        properties.insert("case".into(), cases.to_value());
    }
    schema
}

/// A value with a short form `S` and a long form `L`.
pub(crate) fn either<S: JsonSchema, L: JsonSchema>(generator: &mut SchemaGenerator) -> Schema {
    json_schema!({ "anyOf": [S::json_schema(generator), L::json_schema(generator)] })
}
