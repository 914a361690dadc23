//! Reads a `[[network]]`: a table with the keys of a link and keys of its own.
//!
//! serde's `flatten` would copy the table before it reads the link, and errors would name the whole
//! table in place of a key.

use crate::{foreground_arrivals::StreamLoad, fraction::Fraction, law::SizeLaw, link::Link, networks::ParallelNetwork};
use serde::{
    Deserialize, Deserializer,
    de::{self, DeserializeSeed, IntoDeserializer as _, MapAccess, Visitor, value},
};
use std::{fmt, sync::LazyLock};
use units::Bytes;

/// The keys of a network that a link does not have.
#[derive(Debug, Default)]
struct OwnKeys {
    load: Option<Fraction>,
    size: Option<SizeLaw>,
    window: Option<Bytes>,
    streams: Option<StreamLoad>,
}

const OWN_KEYS: [&str; 4] = ["load", "size", "window", "streams"];

/// All keys of a network, those of a link first.
static KEYS: LazyLock<Vec<&'static str>> = LazyLock::new(|| {
    let mut keys: &[&str] = &[];
    // Always an error: it only reports the names of the fields.
    let _ = Link::deserialize(FieldNames(&mut keys));
    keys.iter().copied().chain(OWN_KEYS).collect()
});

impl<'de> Deserialize<'de> for ParallelNetwork {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct NetworkVisitor;
        impl<'de> Visitor<'de> for NetworkVisitor {
            type Value = ParallelNetwork;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("struct ParallelNetwork")
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<ParallelNetwork, A::Error> {
                let mut own = OwnKeys::default();
                let link = Link::deserialize(value::MapAccessDeserializer::new(LinkKeys { map, own: &mut own }))?;
                let OwnKeys { load, size, window, streams } = own;
                Ok(ParallelNetwork { link, load: load.map_or(0.0, |load| load.0), size, window, streams })
            }
        }
        deserializer.deserialize_struct("ParallelNetwork", &KEYS, NetworkVisitor)
    }
}

/// The keys of the link in a network's table; the others are read into `own` as they come.
struct LinkKeys<'a, A> {
    map: A,
    own: &'a mut OwnKeys,
}

impl<'de, A: MapAccess<'de>> MapAccess<'de> for LinkKeys<'_, A> {
    type Error = A::Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, A::Error> {
        let mut seed = Some(seed);
        loop {
            match self.map.next_key_seed(EitherKey(&mut seed))? {
                None => return Ok(None),
                Some(KeyOf::Link(key)) => return Ok(Some(key)),
                Some(KeyOf::Network("load")) => self.own.load = Some(self.map.next_value()?),
                Some(KeyOf::Network("size")) => self.own.size = Some(self.map.next_value()?),
                Some(KeyOf::Network("window")) => self.own.window = Some(self.map.next_value()?),
                Some(KeyOf::Network(_)) => self.own.streams = Some(self.map.next_value()?),
            }
        }
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, A::Error> {
        self.map.next_value_seed(seed)
    }
}

/// A key of a network's table.
enum KeyOf<L> {
    Link(L),
    Network(&'static str),
}

/// Reads a key; one of the link with the given seed. Unknown keys are refused here, within the
/// reading of the key, so that the error names it.
struct EitherKey<'a, K>(&'a mut Option<K>);

impl<'de, K: DeserializeSeed<'de>> DeserializeSeed<'de> for EitherKey<'_, K> {
    type Value = KeyOf<K::Value>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        let name = String::deserialize(deserializer)?;
        if let Some(own) = OWN_KEYS.into_iter().find(|own| *own == name) {
            return Ok(KeyOf::Network(own));
        }
        match self.0.take() {
            Some(seed) if KEYS.contains(&name.as_str()) => seed.deserialize(name.into_deserializer()).map(KeyOf::Link),
            _ => Err(de::Error::unknown_field(&name, &KEYS)),
        }
    }
}

/// A deserializer that stores the names of a struct's fields and then fails.
struct FieldNames<'a>(&'a mut &'static [&'static str]);

impl<'de> Deserializer<'de> for FieldNames<'_> {
    type Error = value::Error;

    fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, value::Error> {
        Err(de::Error::custom("no struct"))
    }

    fn deserialize_struct<V: Visitor<'de>>(self, _: &'static str, fields: &'static [&'static str], _: V) -> Result<V::Value, value::Error> {
        *self.0 = fields;
        Err(de::Error::custom("names only"))
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 u8 u16 u32 u64 f32 f64 char str string bytes byte_buf option unit unit_struct newtype_struct seq tuple
        tuple_struct map enum identifier ignored_any
    }
}

#[cfg(test)]
mod tests {
    use crate::{Scenario, ScenarioFile};
    use std::{
        io::{self, BufRead},
        sync::Arc,
    };
    use units::{Rate, Span};

    /// A scenario with one network that has these keys. Its files are a trace of 12 Mbit/s and a
    /// step.
    fn parse(keys: &str) -> Result<Scenario, String> {
        let text = format!("name = \"x\"\n[bond]\nscheduler = \"score\"\n[[flow]]\nbytes = \"1MB\"\n[[network]]\n{keys}\n");
        let open = |name: &str| -> io::Result<Box<dyn BufRead>> {
            match name {
                "trace" => Ok(Box::new("1\n2\n".as_bytes())),
                "steps" => Ok(Box::new("time,rate,delay\n15s,4Mbit,40ms\n".as_bytes())),
                _ => Err(io::ErrorKind::NotFound.into()),
            }
        };
        let file = ScenarioFile::parse_with(&text, "x", Arc::new(open)).and_then(|file| file.variants(&[]));
        file.map(|mut variants| variants.remove(0).scenario).map_err(|error| error.to_string())
    }

    #[test]
    fn an_error_names_the_key_and_knows_those_of_link_and_network() {
        let starts = |keys: &str, with: &str| {
            let error = parse(&format!("rate = \"1Mbit\"\n{keys}")).expect_err("it is wrong");
            assert!(error.starts_with(with), "{error}");
        };
        starts(
            "delay = \"1ms\"\njiter = 1",
            "x:9: network[1].jiter: is not a key here: did you mean jitter? The keys are rate, delay, queue, loss, bit_errors, outages, \
             jitter, reordering, duplication, changes, steps, repeat, trace, demand, medium, reverse, load, size, window, streams",
        );
        starts("delay = 1", "x:8: network[1].delay: \"1\" has no unit");
        starts("delay = \"1ms\"\nsize = 7", "x:9: network[1].size: \"7\" has no unit");
        starts("delay = \"1ms\"\njitter = { delay = \"x\" }", "x:9: network[1].jitter.delay: \"x\" has no number");
        starts("delay = \"1ms\"\nstreams = { last = \"1s\" }", "x:9: network[1].streams.last: is not a key here: did you mean lasts?");
        starts("load = 0.5", "x:6: network[1].delay: is missing");
        starts("delay = \"1ms\"\nsteps = \"none\"", "x:9: network[1].steps: cannot open \"none\"");
        starts("delay = \"1ms\"\nloss = { reverse = { per_packet = 2 } }", "x:9: network[1].loss.reverse.per_packet: is 2, but");
    }

    #[test]
    fn a_network_has_every_key_of_a_link_and_is_read_back() {
        let keys = "rate = \"10Mbit\"\ndelay = \"20ms\"\nqueue = { limit = \"50pkt\", kind = \"fq_codel\" }\n\
                    loss = { per_packet = 0.01, reverse = { per_second = 2.0 } }\nbit_errors = 1e-9\n\
                    outages = { every = \"60s\", last = \"1s\" }\njitter = { delay = \"1ms\", reorders = true }\n\
                    reordering = { share = \"1%\", by = \"4ms\" }\nduplication = 0.001\n\
                    changes = [{ at = \"5s\", rate = \"5Mbit\", delay = \"30ms\", loss = 0.1 }]\nrepeat = \"15s\"\n\
                    load = 0.2\nsize = \"1MB\"\nwindow = \"64kB\"\nstreams = { every = \"20s\", lasts = \"60s\", rate = \"500kbit\", most = 8 }";
        let scenario = parse(keys).unwrap();
        let text = toml::to_string(&scenario).unwrap();
        let read = ScenarioFile::parse(&text, "printed").unwrap().variants(&[]).unwrap().remove(0).scenario;
        assert_eq!(read, scenario, "{text}");
        let link = &scenario.networks[0].link;
        assert!(link.jitter.is_some() && link.reordering.is_some() && link.outages.is_some() && link.loss.reverse.is_some(), "{link:?}");
        assert_eq!(scenario.networks[0].load, 0.2);
    }

    #[test]
    fn rates_of_a_network_count_payload_and_those_of_its_link_ip_bytes() {
        let network = parse(
            "rate = \"14.48Mbit\"\ndelay = \"20ms\"\nsteps = \"steps\"\ndemand = { least = \"1.448Mbit\", above = \"6kB\", every = \"1s\" }",
        );
        assert!(network.unwrap_err().contains("network[1].demand: stands beside changes"));
        let network = parse("rate = \"14.48Mbit\"\ndelay = \"20ms\"\nsteps = \"steps\"").unwrap().networks.remove(0);
        let link = network.ip_link(1448);
        assert_eq!(
            (link.rate, link.changes[0].rate, link.changes[0].delay),
            (Rate(15_000_000), Some(Rate(4_143_647)), Some(Span(40_000_000)))
        );
        // A trace has opportunities of 1500 bytes of IP packets, of which 1448 are payload.
        let traced = parse("delay = \"20ms\"\ntrace = { down = \"trace\", up = \"trace\" }").unwrap().networks.remove(0);
        assert_eq!((traced.link.rate, traced.ip_link(1448).rate), (Rate(11_584_000), Rate(12_000_000)));
    }
}
