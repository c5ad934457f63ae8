//! Adds places to a module at which a script gives way to others.
//!
//! Machine code looks at the epoch where a function begins and where a loop begins again (wasmtime, `Config::epoch_interruption`), and
//! nowhere else. So code without a loop can call the host, or write to its whole memory, a hundred thousand times before anybody can
//! stop it; and functions that return do not look, however deep they were called. The function that is added here does nothing but look.
//! It is called before each operation that may take long, and after a number of others.
//!
//! Positions of functions do not change: the new one comes last. Sections without meaning for the program are left out.

use std::ops::Range;

use wasmparser::{BinaryReaderError, FunctionBody, Operator, Parser, Payload, TypeRef};

/// The module with these places. It must be valid, of the features that `engine` has.
///
/// # Errors
/// It is not.
pub(crate) fn add(module: &[u8]) -> Result<Vec<u8>, String> {
    let read = Read::of(module).map_err(|error| error.to_string())?;
    if read.bodies.is_empty() {
        return Ok(module.to_vec());
    }
    let added = read.add(module);
    added.ok_or_else(|| "its sections contradict each other".to_owned())
}

/// What is known of a module.
#[derive(Default)]
struct Read {
    /// Identifiers and contents.
    sections: Vec<(u8, Range<usize>)>,
    /// How many types there are, and where.
    types: (u32, Range<usize>),
    functions_imported: u32,
    /// The types of its own functions.
    functions: Vec<u32>,
    bodies: Vec<Body>,
}

/// The code of a function.
struct Body {
    code: Range<usize>,
    /// Before which operations it gives way.
    gives_way: Vec<usize>,
}

impl Read {
    fn of(module: &[u8]) -> Result<Self, BinaryReaderError> {
        let mut read = Self::default();
        for payload in Parser::new(0).parse_all(module) {
            let payload = payload?;
            if let Some((id, contents)) = payload.as_section()
                && id != CUSTOM
            {
                read.sections.push((id, contents));
            }
            match payload {
                Payload::TypeSection(types) => {
                    read.types = (types.count(), types.original_position()..types.range().end);
                }
                Payload::ImportSection(imports) => {
                    for import in imports {
                        read.functions_imported +=
                            u32::from(matches!(import?.ty, TypeRef::Func(_)));
                    }
                }
                Payload::FunctionSection(functions) => {
                    read.functions = functions.into_iter().collect::<Result<_, _>>()?;
                }
                Payload::CodeSectionEntry(body) => {
                    read.bodies.push(Body::of(&body, read.functions_imported)?);
                }
                _ => {}
            }
        }
        Ok(read)
    }

    fn add(&self, module: &[u8]) -> Option<Vec<u8>> {
        let (types, range_of_types) = &self.types;
        let here = u32::try_from(self.functions.len()).ok()?;
        let here = self.functions_imported.checked_add(here)?;
        let mut call = vec![CALL];
        number(&mut call, here);
        let mut out = module.get(..HEAD_LEN)?.to_vec();
        for (id, contents) in &self.sections {
            let mut section = Vec::new();
            match *id {
                TYPES => {
                    number(&mut section, types.checked_add(1)?);
                    section.extend_from_slice(module.get(range_of_types.clone())?);
                    section.extend_from_slice(NO_ARGUMENTS_NO_RESULTS);
                }
                FUNCTIONS => {
                    length(&mut section, self.functions.len() + 1);
                    for function in self.functions.iter().chain([types]) {
                        number(&mut section, *function);
                    }
                }
                CODE => {
                    length(&mut section, self.bodies.len() + 1);
                    for body in &self.bodies {
                        sized(&mut section, &body.with(&call, module)?);
                    }
                    sized(&mut section, &[NO_LOCALS, END]);
                }
                _ => section.extend_from_slice(module.get(contents.clone())?),
            }
            out.push(*id);
            sized(&mut out, &section);
        }
        Some(out)
    }
}

impl Body {
    fn of(body: &FunctionBody<'_>, functions_imported: u32) -> Result<Self, BinaryReaderError> {
        let mut gives_way = Vec::new();
        let mut operations = body.get_operators_reader()?;
        let mut since = 0;
        while !operations.eof() {
            let at = operations.original_position();
            let operation = operations.read()?;
            since += 1;
            if since > OPERATIONS_MAX || is_long(&operation, functions_imported) {
                gives_way.push(at);
                since = 0;
            }
        }
        Ok(Self {
            code: body.range(),
            gives_way,
        })
    }

    /// The code with this call at each of the places.
    fn with(&self, call: &[u8], module: &[u8]) -> Option<Vec<u8>> {
        let mut code = Vec::with_capacity(self.code.len() + self.gives_way.len() * call.len());
        let mut from = self.code.start;
        for at in &self.gives_way {
            code.extend_from_slice(module.get(from..*at)?);
            code.extend_from_slice(call);
            from = *at;
        }
        code.extend_from_slice(module.get(from..self.code.end)?);
        Some(code)
    }
}

/// Whether an operation may take long: calls of the host, and what is as long as memory or tables are. Functions of the module look
/// themselves.
fn is_long(operation: &Operator<'_>, functions_imported: u32) -> bool {
    match operation {
        Operator::Call { function_index } | Operator::ReturnCall { function_index } => {
            *function_index < functions_imported
        }
        Operator::CallIndirect { .. }
        | Operator::ReturnCallIndirect { .. }
        | Operator::CallRef { .. }
        | Operator::ReturnCallRef { .. }
        | Operator::MemoryGrow { .. }
        | Operator::MemoryFill { .. }
        | Operator::MemoryCopy { .. }
        | Operator::MemoryInit { .. }
        | Operator::TableGrow { .. }
        | Operator::TableFill { .. }
        | Operator::TableCopy { .. }
        | Operator::TableInit { .. } => true,
        _ => false,
    }
}

fn sized(out: &mut Vec<u8>, bytes: &[u8]) {
    length(out, bytes.len());
    out.extend_from_slice(bytes);
}

/// A module has at most [`MODULE_LEN_MAX`](crate::engine::MODULE_LEN_MAX) bytes.
fn length(out: &mut Vec<u8>, length: usize) {
    number(out, u32::try_from(length).unwrap_or(u32::MAX));
}

/// LEB128 (WebAssembly, section 5.2.2).
fn number(out: &mut Vec<u8>, mut number: u32) {
    loop {
        let [low, ..] = number.to_le_bytes();
        number >>= 7;
        if number == 0 {
            return out.push(low & 0x7f);
        }
        out.push(low | 0x80);
    }
}

/// The magic and the version.
const HEAD_LEN: usize = 8;
const CUSTOM: u8 = 0;
const TYPES: u8 = 1;
const FUNCTIONS: u8 = 3;
const CODE: u8 = 10;
const CALL: u8 = 0x10;
const NO_ARGUMENTS_NO_RESULTS: &[u8] = &[0x60, 0, 0];
const NO_LOCALS: u8 = 0;
const END: u8 = 0x0b;
/// Operations after which a script gives way, also without a long one.
const OPERATIONS_MAX: u32 = 1000;

#[cfg(test)]
mod tests {
    use super::*;

    fn text(body: &str) -> Vec<u8> {
        wat::parse_str(format!(
            r#"(module
                (import "a" "host" (func $host))
                (memory (export "memory") 1)
                (table 1 funcref)
                (elem (i32.const 0) $g)
                (func $g (export "run") {body})
                (data (i32.const 0) "abc"))"#
        ))
        .unwrap()
    }

    /// Calls of the function that is added.
    fn added(module: &[u8]) -> usize {
        let mut count = 0;
        for payload in Parser::new(0).parse_all(module) {
            if let Payload::CodeSectionEntry(body) = payload.unwrap() {
                let operations = body.get_operators_reader().unwrap();
                let is_it = |operation| matches!(operation, Operator::Call { function_index: 2 });
                count += operations
                    .into_iter()
                    .filter(|one| is_it(one.clone().unwrap()))
                    .count();
            }
        }
        count
    }

    #[test]
    fn what_may_take_long_has_a_place_before_it_and_the_module_stays_valid() {
        for (body, places) in [
            ("", 0),
            ("(call $host)", 1),
            ("(call $g) (call_indirect (i32.const 0))", 1),
            (
                "(if (i32.const 1) (then (call $host)) (else (memory.fill (i32.const 0) (i32.const 0) (i32.const 9))))",
                2,
            ),
            (
                "(block (br 0) (memory.copy (i32.const 0) (i32.const 0) (i32.const 9)) (drop (memory.grow (i32.const 1))))",
                2,
            ),
            (&"(drop (i32.const 1000))".repeat(5000), 9),
        ] {
            let module = add(&text(body)).unwrap();
            let engine = crate::engine::engine().unwrap();
            wasmtime::Module::from_binary(&engine, &module).unwrap();
            assert_eq!(added(&module), places, "{body}");
        }
    }

    #[test]
    fn a_module_without_functions_stays_as_it_is() {
        let module = wat::parse_str(r#"(module (memory (export "memory") 1))"#).unwrap();
        assert_eq!(add(&module).unwrap(), module);
    }
}
