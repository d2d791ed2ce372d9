//! Bodies that are JSON objects. A derived type by itself would also read a list of its fields' values, in
//! their order: a body whose names nobody wrote could mean something.

use std::fmt;
use std::marker::PhantomData;

use serde::Deserialize;
use serde::de::value::MapAccessDeserializer;
use serde::de::{DeserializeSeed, Deserializer, MapAccess, Visitor};

/// Reads the object that a body is, and nothing behind it.
///
/// # Errors
/// Where it is no JSON, no object, or not what `T` reads, with line and column.
pub(super) fn read_object<'b, T: Deserialize<'b>>(body: &'b [u8]) -> serde_json::Result<T> {
    let mut json = serde_json::Deserializer::from_slice(body);
    let read = ObjectSeed(PhantomData).deserialize(&mut json)?;
    json.end().map(|()| read)
}

/// Reads an object.
pub(super) struct ObjectSeed<T>(pub(super) PhantomData<T>);

impl<'de, T: Deserialize<'de>> DeserializeSeed<'de> for ObjectSeed<T> {
    type Value = T;
    fn deserialize<D: Deserializer<'de>>(self, json: D) -> Result<T, D::Error> {
        json.deserialize_map(self)
    }
}

impl<'de, T: Deserialize<'de>> Visitor<'de> for ObjectSeed<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, fields: A) -> Result<T, A::Error> {
        T::deserialize(MapAccessDeserializer::new(fields))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Deserialize)]
    struct Pair {
        a: u8,
        b: u8,
    }

    #[test]
    fn an_object_is_read_and_a_list_of_its_values_is_not() {
        let read: Pair = read_object(br#"{"b":2,"a":1}"#).unwrap();
        assert_eq!((read.a, read.b), (1, 2));
        for wrong in ["[1,2]", "5", "null", r#"{"a":1,"b":2} x"#, ""] {
            assert!(read_object::<Pair>(wrong.as_bytes()).is_err(), "{wrong}");
        }
    }
}
