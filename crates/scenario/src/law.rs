//! Probability laws of what is random in a scenario: sizes of files, lengths of spells, gaps between
//! arrivals. A law is a shape of mean 1, and the mean that it is scaled to.

use rand::RngExt;
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::borrow::Cow;
use toml_file::text_or_table;
use units::{Bytes, Quantity, Span};

/// Upper bound of a draw, in units: sums of draws must not overflow.
const MOST: f64 = (1u64 << 60) as f64;

/// The shape of a law, with mean 1. B is the drawn value.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub enum Shape {
    /// A constant.
    #[default]
    Deterministic,
    /// P(B > x) = e⁻ˣ.
    Exponential,
    /// Two exponential phases with balanced means.
    Hyperexponential {
        /// The squared coefficient of variation, Var B; at least 1.
        scv: f64,
    },
    /// P(B > x) = ((a − 1)/(a x))ᵃ from (a − 1)/a on.
    Pareto {
        /// a, above 1; the variance is finite above 2.
        exponent: f64,
    },
    /// P(B > x) = (1 + x/(a − 1))⁻ᵃ: Pareto's tail, from 0 on.
    Lomax {
        /// a, above 1; the variance is finite above 2.
        exponent: f64,
    },
    /// A constant, and an exponential part on top of it.
    ShiftedExponential {
        /// The constant, from 0 to 1.
        constant: f64,
    },
}

/// The name of each shape, with the key of its parameter.
const NAMES: [(&str, Option<&str>); 6] = [
    ("deterministic", None),
    ("exponential", None),
    ("hyperexponential", Some("scv")),
    ("pareto", Some("exponent")),
    ("lomax", Some("exponent")),
    ("shifted-exponential", Some("constant")),
];

impl Shape {
    /// The shape of this name with this parameter.
    ///
    /// # Errors
    /// What is wrong with them, and what would be right.
    fn new(name: &str, parameter: f64) -> Result<Self, String> {
        let (shape, bounds, holds) = match name {
            "deterministic" => (Shape::Deterministic, "", true),
            "exponential" => (Shape::Exponential, "", true),
            "hyperexponential" => (Shape::Hyperexponential { scv: parameter }, "at least 1", parameter >= 1.0),
            "pareto" => (Shape::Pareto { exponent: parameter }, "above 1: the mean is infinite otherwise", parameter > 1.0),
            "lomax" => (Shape::Lomax { exponent: parameter }, "above 1: the mean is infinite otherwise", parameter > 1.0),
            "shifted-exponential" => {
                (Shape::ShiftedExponential { constant: parameter }, "a part of the mean, from 0 to 1", (0.0..=1.0).contains(&parameter))
            }
            _ => {
                let names: Vec<&str> = NAMES.iter().map(|(name, _)| *name).collect();
                return Err(format!("there is no law {name:?}: law is one of {}", names.join(", ")));
            }
        };
        let key = shape.parameter().map_or("", |(key, _)| key);
        if holds && parameter.is_finite() { Ok(shape) } else { Err(format!("the {key} of {name} is {parameter}, and must be {bounds}")) }
    }

    /// The name in files.
    pub fn name(self) -> &'static str {
        let index = match self {
            Shape::Deterministic => 0,
            Shape::Exponential => 1,
            Shape::Hyperexponential { .. } => 2,
            Shape::Pareto { .. } => 3,
            Shape::Lomax { .. } => 4,
            Shape::ShiftedExponential { .. } => 5,
        };
        NAMES[index].0
    }

    /// The key and the value of the parameter, if there is one.
    fn parameter(self) -> Option<(&'static str, f64)> {
        match self {
            Shape::Deterministic | Shape::Exponential => None,
            Shape::Hyperexponential { scv } => Some(("scv", scv)),
            Shape::Pareto { exponent } | Shape::Lomax { exponent } => Some(("exponent", exponent)),
            Shape::ShiftedExponential { constant } => Some(("constant", constant)),
        }
    }

    /// The squared coefficient of variation, possibly infinite.
    pub fn scv(self) -> f64 {
        match self {
            Shape::Deterministic => 0.0,
            Shape::Exponential => 1.0,
            Shape::Hyperexponential { scv } => scv,
            Shape::Pareto { exponent: a } if a > 2.0 => 1.0 / (a * (a - 2.0)),
            Shape::Lomax { exponent: a } if a > 2.0 => a / (a - 2.0),
            Shape::Pareto { .. } | Shape::Lomax { .. } => f64::INFINITY,
            Shape::ShiftedExponential { constant } => (1.0 - constant).powi(2),
        }
    }

    /// Draws a number by inversion.
    pub fn draw(self, random: &mut impl RngExt) -> f64 {
        let mut uniform = || 1.0 - random.random::<f64>();
        match self {
            Shape::Deterministic => 1.0,
            Shape::Exponential => -uniform().ln(),
            Shape::Hyperexponential { scv } => {
                let part = (1.0 + ((scv - 1.0) / (scv + 1.0)).sqrt()) / 2.0;
                let rate = if uniform() > part { 2.0 * (1.0 - part) } else { 2.0 * part };
                -uniform().ln() / rate
            }
            Shape::Pareto { exponent: a } => (a - 1.0) / a * uniform().powf(-1.0 / a),
            Shape::Lomax { exponent: a } => (a - 1.0) * (uniform().powf(-1.0 / a) - 1.0),
            Shape::ShiftedExponential { constant } => constant - (1.0 - constant) * uniform().ln(),
        }
    }
}

/// A law of quantities. In a file it is the bare quantity for a constant (`"2MB"`), else a table:
/// `{ law = "exponential", mean = "2MB" }`, with `scv`, `exponent` or `constant` if the shape has such
/// a parameter.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Law<T> {
    /// How draws vary.
    pub shape: Shape,
    /// Their mean.
    pub mean: T,
}

impl<T> From<T> for Law<T> {
    /// A constant.
    fn from(mean: T) -> Self {
        Law { shape: Shape::Deterministic, mean }
    }
}

impl<T: Quantity> Law<T> {
    /// Draws a quantity in whole units, at least one unit. A constant draws nothing from `random`.
    pub fn draw(&self, random: &mut impl RngExt) -> T {
        match self.shape {
            Shape::Deterministic => self.mean,
            shape => T::from_units((shape.draw(random) * self.mean.units() as f64).round().clamp(1.0, MOST) as u64),
        }
    }

    /// The value of a constant; none for other laws.
    pub fn fixed(&self) -> Option<T> {
        (self.shape == Shape::Deterministic).then_some(self.mean)
    }
}

/// A law of random values, in place of a constant.
#[derive(Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct LawKeys<T> {
    /// Name of the law.
    #[schemars(extend("enum" = NAMES.map(|(name, _)| name)))]
    law: String,
    /// Mean of the values.
    mean: T,
    /// Squared coefficient of variation of `hyperexponential`, at least 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    scv: Option<f64>,
    /// Exponent of `pareto` and `lomax`, above 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    exponent: Option<f64>,
    /// Constant part of `shifted-exponential`, as a part of the mean, from 0 to 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    constant: Option<f64>,
}

impl<T: Quantity> TryFrom<LawKeys<T>> for Law<T> {
    type Error = String;

    fn try_from(table: LawKeys<T>) -> Result<Self, String> {
        let wanted = NAMES.iter().find(|(name, _)| *name == table.law).and_then(|(_, key)| *key);
        let mut parameter = 0.0;
        for (key, value) in [("scv", table.scv), ("exponent", table.exponent), ("constant", table.constant)] {
            match value {
                Some(value) if wanted == Some(key) => parameter = value,
                None if wanted == Some(key) => {
                    return Err(format!("{} has no {key}: it takes one, such as {key} = {}", table.law, example(key)));
                }
                // An unknown name is reported first.
                Some(_) if NAMES.iter().any(|(name, _)| *name == table.law) => {
                    return Err(format!("{} takes no {key}: leave it out", table.law));
                }
                _ => {}
            }
        }
        let shape = Shape::new(&table.law, parameter)?;
        if table.mean.units() == 0 && shape != Shape::Deterministic {
            return Err(format!("the mean of {} is 0: give a mean above 0", table.law));
        }
        Ok(Law { shape, mean: table.mean })
    }
}

fn example(key: &str) -> &'static str {
    match key {
        "scv" => "16",
        "exponent" => "2.5",
        _ => "0.5",
    }
}

impl<T: Quantity> Serialize for Law<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if self.fixed().is_some() {
            return self.mean.serialize(serializer);
        }
        let of = |wanted: &str| self.shape.parameter().filter(|(key, _)| *key == wanted).map(|(_, value)| value);
        let (scv, exponent, constant) = (of("scv"), of("exponent"), of("constant"));
        LawKeys { law: self.shape.name().into(), mean: self.mean, scv, exponent, constant }.serialize(serializer)
    }
}

impl<'de, T: Quantity> Deserialize<'de> for Law<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let expected = "a quantity with its unit, or a law such as { law = \"exponential\", mean = … }";
        text_or_table::<D, Law<T>, LawKeys<T>>(deserializer, expected, |text| {
            text.parse().map(|mean: T| Law::from(mean)).map_err(|error| error.to_string())
        })
    }
}

impl<T: Quantity + JsonSchema> JsonSchema for Law<T> {
    fn schema_name() -> Cow<'static, str> {
        format!("LawOf{}", T::schema_name()).into()
    }

    fn json_schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
        crate::schema::either::<T, LawKeys<T>>(generator)
    }
}

/// A law of sizes.
pub type SizeLaw = Law<Bytes>;
/// A law of lengths of time.
pub type SpanLaw = Law<Span>;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Purpose, stream};
    use proptest::prelude::*;

    const ALL: [Shape; 6] = [
        Shape::Deterministic,
        Shape::Exponential,
        Shape::Hyperexponential { scv: 16.0 },
        Shape::Pareto { exponent: 6.0 },
        Shape::Lomax { exponent: 6.0 },
        Shape::ShiftedExponential { constant: 0.25 },
    ];

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Holder {
        size: SizeLaw,
    }

    fn read(law: &str) -> Result<SizeLaw, String> {
        let holder = toml::from_str::<Holder>(&format!("size = {law}")).map_err(|error| error.message().to_string());
        holder.map(|holder| holder.size)
    }

    #[test]
    fn draws_have_the_mean_and_the_variance_that_the_law_says() {
        const N: usize = 400_000;
        let mut random = stream(3, Purpose::Sizes, 0);
        for shape in ALL {
            let law = Law { shape, mean: Bytes(2_000_000) };
            let drawn: Vec<f64> = (0..N).map(|_| law.draw(&mut random).0 as f64 / 2e6).collect();
            let mean = drawn.iter().sum::<f64>() / N as f64;
            let variance = drawn.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / N as f64;
            assert!((mean - 1.0).abs() < 4.0 * (shape.scv() / N as f64).sqrt() + 1e-9, "{shape:?}: {mean}");
            assert!((variance - shape.scv()).abs() <= 0.05 * shape.scv(), "{shape:?}: {variance}");
        }
    }

    #[test]
    fn tails_are_the_laws() {
        const N: usize = 400_000;
        let mut random = stream(5, Purpose::Sizes, 0);
        for (shape, x, tail) in [
            (Shape::Exponential, 3.0, (-3.0f64).exp()),
            (Shape::Pareto { exponent: 2.0 }, 3.0, 1.0 / 36.0),
            (Shape::Lomax { exponent: 2.0 }, 3.0, 1.0 / 16.0),
            (Shape::Lomax { exponent: 3.0 }, 4.0, 1.0 / 27.0),
            (Shape::ShiftedExponential { constant: 0.5 }, 2.0, (-3.0f64).exp()),
        ] {
            let above = (0..N).filter(|_| shape.draw(&mut random) > x).count() as f64 / N as f64;
            assert!((above - tail).abs() < 4.0 * (tail / N as f64).sqrt(), "{shape:?}: {above}, not {tail}");
        }
    }

    #[test]
    fn what_does_not_differ_draws_nothing() {
        let (mut one, mut other) = (stream(1, Purpose::Sizes, 0), stream(1, Purpose::Sizes, 0));
        assert_eq!(Law::from(Span(0)).draw(&mut one), Span(0));
        assert_eq!(one.random::<u64>(), other.random::<u64>());
    }

    #[test]
    fn no_draw_is_nothing_or_beyond_what_can_be_added_up() {
        let mut random = stream(1, Purpose::Sizes, 0);
        let (small, heavy) =
            (Law { shape: Shape::Exponential, mean: Bytes(1) }, Law { shape: Shape::Pareto { exponent: 1.001 }, mean: Bytes(1 << 59) });
        assert!((0..10_000).all(|_| small.draw(&mut random).0 >= 1 && heavy.draw(&mut random).0 <= 1 << 60));
    }

    #[test]
    fn texts_mean_what_they_say() {
        assert_eq!(read("\"2MB\""), Ok(Law::from(Bytes(2_000_000))));
        assert_eq!(read("{ law = \"exponential\", mean = \"2MB\" }"), Ok(Law { shape: Shape::Exponential, mean: Bytes(2_000_000) }));
        assert_eq!(
            read("{ law = \"pareto\", exponent = 2, mean = \"1kB\" }"),
            Ok(Law { shape: Shape::Pareto { exponent: 2.0 }, mean: Bytes(1000) })
        );
    }

    #[test]
    fn wrong_texts_say_what_would_be_right() {
        let wrong = |law: &str| read(law).unwrap_err();
        insta::assert_snapshot!(wrong("{ law = \"normal\", mean = \"2MB\" }"),
            @r#"there is no law "normal": law is one of deterministic, exponential, hyperexponential, pareto, lomax, shifted-exponential"#);
        insta::assert_snapshot!(wrong("{ law = \"lomax\", mean = \"2MB\" }"), @"lomax has no exponent: it takes one, such as exponent = 2.5");
        insta::assert_snapshot!(wrong("{ law = \"exponential\", mean = \"2MB\", scv = 2 }"), @"exponential takes no scv: leave it out");
        insta::assert_snapshot!(wrong("{ law = \"pareto\", mean = \"2MB\", exponent = 1 }"),
            @"the exponent of pareto is 1, and must be above 1: the mean is infinite otherwise");
        insta::assert_snapshot!(wrong("{ law = \"hyperexponential\", mean = \"2MB\", scv = nan }"),
            @"the scv of hyperexponential is NaN, and must be at least 1");
        insta::assert_snapshot!(wrong("{ law = \"exponential\", mean = \"0B\" }"), @"the mean of exponential is 0: give a mean above 0");
        insta::assert_snapshot!(wrong("{ law = \"exponential\" }"), @"missing field `mean`");
        insta::assert_snapshot!(wrong("\"2MX\""),
            @r#""2MX" ends in the unknown unit "MX": a size takes B, kB, MB, GB, KiB, MiB, GiB or pkt (1500 bytes), for example 10MB"#);
    }

    fn shape() -> impl Strategy<Value = Shape> {
        prop_oneof![
            Just(Shape::Deterministic),
            Just(Shape::Exponential),
            (1.0..100.0f64).prop_map(|scv| Shape::Hyperexponential { scv }),
            (1.001..10.0f64).prop_map(|exponent| Shape::Pareto { exponent }),
            (1.001..10.0f64).prop_map(|exponent| Shape::Lomax { exponent }),
            (0.0..=1.0f64).prop_map(|constant| Shape::ShiftedExponential { constant }),
        ]
    }

    proptest! {
        #[test]
        fn what_is_printed_parses_back(shape in shape(), mean in 1u64..(1 << 50)) {
            let holder = Holder { size: Law { shape, mean: Bytes(mean) } };
            let text = toml::to_string(&holder).unwrap();
            prop_assert_eq!(toml::from_str::<Holder>(&text).unwrap(), holder, "{}", text);
        }

        #[test]
        fn the_same_seed_draws_the_same(shape in shape(), seed: u64) {
            let draw = || { let mut random = stream(seed, Purpose::Sizes, 0); let law = Law { shape, mean: Span(1_000_000) }; [(); 20].map(|()| law.draw(&mut random)) };
            prop_assert_eq!(draw(), draw());
        }
    }
}
