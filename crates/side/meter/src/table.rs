//! The table of platforms as text: `billing.toml`, and a user's file of the same form whose platforms replace or extend it.

use std::collections::BTreeMap;

use pilot_model::manifest::{in_words, syntax_in_words};
use pilot_model::nearest::nearest;
use serde::Deserialize;

use crate::money::Money;
use crate::platform::{Basis, BillableTime, Knob, Platform, Resource, Size, Sizing, Ties};

/// The platforms, by id.
#[derive(Debug, Clone)]
pub struct Table(Vec<Platform>);

impl Table {
    /// Pilotlight's own table: Table 1 of the paper, and what it is compared with.
    ///
    /// # Errors
    /// Never: a test reads it.
    pub fn shipped() -> Result<Self, String> {
        Self::read(SHIPPED)
    }

    /// Pilotlight's own table with a user's platforms, if there are any: those with a known id replace that platform.
    ///
    /// # Errors
    /// What is wrong in the user's text, with the platform and key.
    pub fn with(user: Option<&str>) -> Result<Self, String> {
        let mut table = Self::shipped()?;
        let Some(user) = user else { return Ok(table) };
        for platform in Self::read(user)?.0 {
            match table.0.iter_mut().find(|known| known.id == platform.id) {
                Some(known) => *known = platform,
                None => table.0.push(platform),
            }
        }
        Ok(table)
    }

    fn read(text: &str) -> Result<Self, String> {
        let at = |error: &toml::de::Error, problem: String| {
            let before = error.span().and_then(|span| text.get(..span.start));
            let above = before.unwrap_or_default().matches('\n').count();
            let written = text.lines().nth(above).unwrap_or_default().trim();
            let written: String = written.chars().take(60).collect();
            format!(
                "line {}, \"{}\": {problem}",
                above + 1,
                written.escape_debug()
            )
        };
        let document = toml::Deserializer::parse(text)
            .map_err(|error| at(&error, syntax_in_words(text, &error)))?;
        let file = File::deserialize(document)
            .map_err(|error| at(&error, in_words("", error.message())))?;
        if file.platforms.len() > PLATFORMS_MAX {
            return Err(format!("more than {PLATFORMS_MAX} platforms"));
        }
        let platforms = file.platforms.into_iter().map(|(id, spec)| {
            let name = id.clone();
            spec.check(id)
                .map_err(|problem| format!("[platforms.{name}]: {problem}"))
        });
        platforms.collect::<Result<_, _>>().map(Self)
    }

    /// The platforms, in the order of their ids.
    #[must_use]
    pub fn platforms(&self) -> &[Platform] {
        &self.0
    }

    /// The platform with this id.
    ///
    /// # Errors
    /// There is none; the message names the nearest.
    pub fn platform(&self, id: &str) -> Result<&Platform, String> {
        self.0
            .iter()
            .find(|platform| platform.id == id)
            .ok_or_else(|| {
                let known = self.0.iter().map(|platform| platform.id.as_str());
                let near = nearest(id, known)
                    .map_or_else(String::new, |near| format!("; did you mean {near}?"));
                format!("there is no platform '{id}'{near}")
            })
    }
}

/// Pilotlight's own table, as text.
pub const SHIPPED: &str = include_str!("../billing.toml");
/// Most platforms of a file.
pub const PLATFORMS_MAX: usize = 64;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    platforms: BTreeMap<String, PlatformSpec>,
}

/// A platform as it is written.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct PlatformSpec {
    name: String,
    time: BillableTime,
    #[serde(default = "one_ns")]
    step: Span,
    min: Option<Span>,
    memory: Option<ResourceSpec>,
    cpu: Option<ResourceSpec>,
    #[serde(default)]
    fixed: Vec<FixedSpec>,
    #[serde(default = "no_fee")]
    fee: String,
    size: SizeSpec,
    source: String,
    as_of: String,
}

fn no_fee() -> String {
    "0".to_owned()
}

fn one_ns() -> Span {
    Span(1)
}

/// `price` for `per`: a GB or a vCPU for that time.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ResourceSpec {
    #[serde(default)]
    basis: Basis,
    /// MB, or thousandths of a vCPU.
    #[serde(default)]
    step: Option<u64>,
    price: String,
    per: Span,
}

/// A price of the machine itself, or of its power: `price` per kilowatt-hour with `watts`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct FixedSpec {
    /// For the reader of the file.
    #[serde(rename = "what")]
    _what: String,
    price: String,
    per: Span,
    /// The price is that of a kilowatt-hour, and the machine uses so many watts.
    watts: Option<u64>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct SizeSpec {
    memory_mb: Option<KnobSpec>,
    cpu_milli: Option<KnobSpec>,
    mb_per_vcpu: Option<u64>,
    mb_per_vcpu_range: Option<(u64, u64)>,
    /// `[memory_mb, cpu_milli]`.
    #[serde(default)]
    cpu_from_memory: Vec<(u64, u64)>,
    /// `[cpu_milli, memory_mb]`.
    #[serde(default)]
    memory_from_cpu: Vec<(u64, u64)>,
    /// `[cpu_milli, memory_mb]`.
    list: Option<Vec<(u64, u64)>>,
}

#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
struct KnobSpec {
    min: u64,
    max: u64,
    step: u64,
    above: Option<(u64, u64)>,
}

/// A time, nanoseconds: `"1 ms"`, `"1 h"`. A month is 730 hours, and a `month-30d` is 720.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(try_from = "String")]
struct Span(u64);

impl TryFrom<String> for Span {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        const SECOND: u64 = 1_000_000_000;
        let wrong = || {
            format!(
                "'{text}' is not a time: write a number and ns, us, ms, s, min, h, month or month-30d, such as \"100 ms\""
            )
        };
        let (number, unit) = match text.split_once(' ') {
            Some((number, unit)) => (number.parse().map_err(|_| wrong())?, unit),
            None => (1, text.as_str()),
        };
        let unit = match unit {
            "ns" => 1,
            "us" => 1_000,
            "ms" => 1_000_000,
            "s" => SECOND,
            "min" => 60 * SECOND,
            "h" => 3600 * SECOND,
            "month" => 730 * 3600 * SECOND,
            "month-30d" => 720 * 3600 * SECOND,
            _ => return Err(wrong()),
        };
        let span: Option<u64> = u64::checked_mul(number, unit);
        span.filter(|span| (1..=SPAN_NS_MAX).contains(span))
            .map(Self)
            .ok_or_else(wrong)
    }
}

/// A hundred days.
const SPAN_NS_MAX: u64 = 100 * 24 * 3600 * 1_000_000_000;
const MB: u64 = 1 << 20;
const GB: u128 = 1 << 30;
/// Largest number of MB, thousandths of a vCPU, or of a step of them.
const NUMBER_MAX: u64 = 1 << 24;
/// Most pairs of a tie between memory and CPU.
const PAIRS_MAX: usize = 64;

impl PlatformSpec {
    fn check(self, id: String) -> Result<Platform, String> {
        if self.time == BillableTime::Cpu && self.memory.is_some() {
            return Err("time = \"cpu\" bills CPU alone: remove memory".to_owned());
        }
        for (name, spec) in [("memory", &self.memory), ("cpu", &self.cpu)] {
            let Some(spec) = spec.as_ref().filter(|spec| spec.basis == Basis::Used) else {
                continue;
            };
            if matches!(self.time, BillableTime::Instance | BillableTime::Machine) {
                return Err(format!(
                    "{name}: basis = \"used\" is for time = \"execution\" or \"turnaround\": what an instance uses is not known"
                ));
            }
            if name == "cpu" && spec.step.is_some() {
                return Err(
                    "cpu: basis = \"used\" bills the consumed CPU time, which has no step"
                        .to_owned(),
                );
            }
        }
        let memory = self.memory.map(|spec| spec.check(MB, GB));
        let cpu = self.cpu.map(|spec| spec.check(1, 1000));
        let mut fixed = Money::zero();
        for spec in self.fixed {
            fixed += &spec.check()?;
        }
        Ok(Platform {
            id,
            name: self.name,
            time: self.time,
            step_ns: self.step.0,
            min_ns: self.min.map_or(0, |min| min.0),
            memory: memory
                .transpose()
                .map_err(|problem| format!("memory: {problem}"))?,
            cpu: cpu
                .transpose()
                .map_err(|problem| format!("cpu: {problem}"))?,
            fixed,
            fee: Money::parse(&self.fee).map_err(|problem| format!("fee: {problem}"))?,
            sizing: self
                .size
                .check()
                .map_err(|problem| format!("size: {problem}"))?,
            source: self.source,
            as_of: self.as_of,
        })
    }
}

impl ResourceSpec {
    /// `unit`: of the step. `priced`: what the price is for.
    fn check(self, unit: u64, priced: u128) -> Result<Resource, String> {
        let step = self.step.unwrap_or(0);
        if step > NUMBER_MAX {
            return Err(format!("step = {step} is above {NUMBER_MAX}"));
        }
        Ok(Resource {
            basis: self.basis,
            step: (step * unit).max(1),
            price: Money::parse(&self.price)?
                .over(priced)
                .over(u128::from(self.per.0)),
        })
    }
}

impl FixedSpec {
    fn check(self) -> Result<Money, String> {
        let price = Money::parse(&self.price).map_err(|problem| format!("fixed: {problem}"))?;
        let price = match self.watts {
            Some(watts) => price.times(u128::from(watts)).over(1000),
            None => price,
        };
        Ok(price.over(u128::from(self.per.0)))
    }
}

impl SizeSpec {
    fn check(self) -> Result<Sizing, String> {
        let is_tied = self.mb_per_vcpu_range.is_some()
            || !self.cpu_from_memory.is_empty()
            || !self.memory_from_cpu.is_empty();
        if is_tied && self.cpu_milli.is_none() {
            return Err(
                "mb_per_vcpu_range, cpu_from_memory and memory_from_cpu are for memory_mb with cpu_milli"
                    .to_owned(),
            );
        }
        match (self.list, self.memory_mb, self.cpu_milli, self.mb_per_vcpu) {
            (Some(list), None, None, None) => {
                let sizes = list.into_iter().map(|(cpu_milli, memory_mb)| {
                    Ok(Size {
                        cpu_milli: number(cpu_milli)?,
                        memory_bytes: number(memory_mb)? * MB,
                    })
                });
                let mut sizes: Vec<Size> = sizes.collect::<Result<_, String>>()?;
                sizes.sort_by_key(|size| (size.memory_bytes, size.cpu_milli));
                Ok(Sizing::Listed(sizes))
            }
            (None, Some(memory), None, Some(mb_per_vcpu)) => Ok(Sizing::Proportional {
                memory: memory.check(MB)?,
                bytes_per_vcpu: number(mb_per_vcpu)? * MB,
            }),
            (None, Some(memory), Some(cpu), None) => Ok(Sizing::Separate {
                memory: memory.check(MB)?,
                cpu: cpu.check(1)?,
                ties: Ties {
                    bytes_per_vcpu: match self.mb_per_vcpu_range {
                        Some((least, most)) if least > most => {
                            return Err(format!("mb_per_vcpu_range: {least} is above {most}"));
                        }
                        Some((least, most)) => Some((number(least)? * MB, number(most)? * MB)),
                        None => None,
                    },
                    cpu_from_memory: rising(&self.cpu_from_memory, MB, 1)
                        .map_err(|problem| format!("cpu_from_memory: {problem}"))?,
                    memory_from_cpu: rising(&self.memory_from_cpu, 1, MB)
                        .map_err(|problem| format!("memory_from_cpu: {problem}"))?,
                },
            }),
            _ => Err(
                "write list, or memory_mb and mb_per_vcpu, or memory_mb and cpu_milli".to_owned(),
            ),
        }
    }
}

impl KnobSpec {
    fn check(self, unit: u64) -> Result<Knob, String> {
        if self.min > self.max {
            return Err(format!("min = {} is above max = {}", self.min, self.max));
        }
        Ok(Knob {
            min: number(self.min)? * unit,
            max: number(self.max)? * unit,
            step: number(self.step)? * unit,
            above: match self.above {
                Some((above, step)) => Some((number(above)? * unit, number(step)? * unit)),
                None => None,
            },
        })
    }
}

/// Pairs in which both numbers rise, in the units of each.
fn rising(pairs: &[(u64, u64)], from_unit: u64, to_unit: u64) -> Result<Vec<(u64, u64)>, String> {
    if pairs.len() > PAIRS_MAX {
        return Err(format!("more than {PAIRS_MAX} pairs"));
    }
    let rises = |(one, other): (&(u64, u64), &(u64, u64))| one.0 < other.0 && one.1 <= other.1;
    if !pairs.iter().zip(pairs.iter().skip(1)).all(rises) {
        return Err("its pairs do not rise".to_owned());
    }
    let pairs = pairs
        .iter()
        .map(|(from, to)| Ok((number(*from)? * from_unit, number(*to)? * to_unit)));
    pairs.collect()
}

fn number(number: u64) -> Result<u64, String> {
    if (1..=NUMBER_MAX).contains(&number) {
        Ok(number)
    } else {
        Err(format!("{number} is not between 1 and {NUMBER_MAX}"))
    }
}
