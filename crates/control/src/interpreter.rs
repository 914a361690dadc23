//! Interprets the BPF build of an own controller (RFC 9669): the program can read and write its
//! arguments and its stack, and nothing else. It cannot call anything, and ends after a bounded
//! number of instructions.
//!
//! Programs are compiled for version 3 of the instruction set (`clang -mcpu=v3`). Of it, atomic
//! instructions, calls and packet accesses are missing: no controller has them.

use std::{fmt, mem};

/// An instruction takes eight bytes; a 64-bit constant takes two of them.
const INSTRUCTION_BYTES: usize = 8;
/// The largest number of instructions of one call: the limit of the kernel's verifier.
const MOST_STEPS: u32 = 1_000_000;
/// Where the program sees its arguments and its stack. Both are far from the null pointer and from
/// each other.
const ARGUMENTS: u64 = 1 << 40;
const STACK: u64 = 2 << 40;
const STACK_BYTES: usize = 512;

// Classes of opcodes.
const LD: u8 = 0;
const LDX: u8 = 1;
const ST: u8 = 2;
const STX: u8 = 3;
const ALU32: u8 = 4;
const JMP64: u8 = 5;
const JMP32: u8 = 6;
const ALU64: u8 = 7;
/// The opcode of a 64-bit constant.
const CONSTANT: u8 = 0x18;
/// The bit that makes the second operand a register.
const BY_REGISTER: u8 = 8;
// Operations of class JMP that are no comparison.
const ALWAYS: u8 = 0x00;
const CALL: u8 = 0x80;
const EXIT: u8 = 0x90;
/// Change of the byte order, of class ALU32.
const BYTE_ORDER: u8 = 0xd0;

/// A checked program.
pub(crate) struct Program(Box<[Instruction]>);

#[derive(Clone, Copy)]
struct Instruction {
    opcode: u8,
    destination: u8,
    source: u8,
    offset: i16,
    /// The immediate operand, with its sign extended, or a 64-bit constant.
    operand: u64,
}

/// Why a program cannot be run, or not any further, and at which instruction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Fault {
    instruction: usize,
    what: &'static str,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "its BPF program {} (instruction {})", self.what, self.instruction)
    }
}

impl Program {
    /// Decodes and checks the instructions.
    pub(crate) fn new(bytes: &[u8]) -> Result<Program, Fault> {
        if !bytes.len().is_multiple_of(INSTRUCTION_BYTES) || bytes.is_empty() {
            return Err(Fault { instruction: 0, what: "is not a whole number of instructions" });
        }
        let mut all: Vec<Instruction> = bytes.chunks_exact(INSTRUCTION_BYTES).map(Instruction::decode).collect();
        let mut is_start = vec![true; all.len()];
        let mut at = 0;
        while at < all.len() {
            if all[at].opcode == CONSTANT {
                let high = all.get(at + 1).filter(|next| next.opcode == 0).map(|next| next.operand << 32);
                let high = high.ok_or(Fault { instruction: at, what: "has half of a 64-bit constant" })?;
                all[at].operand = high | all[at].operand & 0xffff_ffff;
                is_start[at + 1] = false;
                at += 1;
            }
            at += 1;
        }
        for (at, instruction) in all.iter().enumerate().filter(|(at, _)| is_start[*at]) {
            let fault = |what| Fault { instruction: at, what };
            instruction.check().map_err(fault)?;
            if instruction.is_jump() {
                let target = (at + 1).checked_add_signed(instruction.offset.into());
                if target.is_none_or(|target| is_start.get(target) != Some(&true)) {
                    return Err(fault("jumps to where there is no instruction"));
                }
            }
        }
        Ok(Program(all.into()))
    }

    /// Runs the program with the address of `arguments` as its only argument.
    pub(crate) fn run(&self, arguments: &mut [u8]) -> Result<(), Fault> {
        let mut memory = Memory { arguments, stack: [0; STACK_BYTES] };
        let mut registers = [0u64; 16];
        registers[1] = ARGUMENTS;
        registers[10] = STACK + STACK_BYTES as u64;
        let mut next = 0;
        for _ in 0..MOST_STEPS {
            let at = next;
            let fault = |what| Fault { instruction: at, what };
            let it = self.0.get(at).ok_or(fault("does not end with an exit"))?;
            next += 1;
            let (destination, source) = (usize::from(it.destination & 15), usize::from(it.source & 15));
            let (left, right) = (registers[destination], if it.opcode & BY_REGISTER != 0 { registers[source] } else { it.operand });
            match it.class() {
                ALU64 => registers[destination] = alu64(it.opcode & 0xf0, left, right),
                ALU32 if it.opcode & 0xf0 == BYTE_ORDER => registers[destination] = byte_order(it, left),
                ALU32 => registers[destination] = alu32(it.opcode & 0xf0, left as u32, right as u32).into(),
                LD => {
                    registers[destination] = it.operand;
                    next += 1;
                }
                LDX => {
                    let address = registers[source].wrapping_add_signed(it.offset.into());
                    registers[destination] = memory.load(address, it.size()).ok_or(fault(OUTSIDE))?;
                }
                ST | STX => {
                    let address = left.wrapping_add_signed(it.offset.into());
                    let value = if it.class() == STX { registers[source] } else { it.operand };
                    memory.store(address, it.size(), value).ok_or(fault(OUTSIDE))?;
                }
                JMP64 if it.opcode & 0xf0 == EXIT => return Ok(()),
                class => {
                    let holds = if class == JMP64 {
                        compare(it.opcode & 0xf0, left, right, left as i64, right as i64)
                    } else {
                        let (left, right) = (left as u32, right as u32);
                        compare(it.opcode & 0xf0, left.into(), right.into(), (left as i32).into(), (right as i32).into())
                    };
                    if holds {
                        // Checked by `new`.
                        next = next.wrapping_add_signed(it.offset.into());
                    }
                }
            }
        }
        Err(Fault { instruction: next, what: "does not end within a million instructions" })
    }
}

const OUTSIDE: &str = "reads or writes outside of its arguments and its stack, by a null pointer perhaps";

impl Instruction {
    fn decode(bytes: &[u8]) -> Instruction {
        let immediate = i32::from_le_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]);
        Instruction {
            opcode: bytes[0],
            destination: bytes[1] & 15,
            source: bytes[1] >> 4,
            offset: i16::from_le_bytes([bytes[2], bytes[3]]),
            operand: i64::from(immediate) as u64,
        }
    }

    fn class(self) -> u8 {
        self.opcode & 7
    }

    /// Size of a memory access, bytes.
    fn size(self) -> usize {
        match self.opcode & CONSTANT {
            0x00 => 4,
            0x08 => 2,
            0x10 => 1,
            _ => 8,
        }
    }

    /// Whether it may continue elsewhere.
    fn is_jump(self) -> bool {
        matches!(self.class(), JMP64 | JMP32) && self.opcode & 0xf0 != EXIT
    }

    fn check(self) -> Result<(), &'static str> {
        const UNKNOWN: &str = "has an instruction that controllers cannot use";
        if self.destination > 10 || self.source > 10 {
            return Err("uses a register that does not exist");
        }
        let operation = self.opcode & 0xf0;
        let known = match self.class() {
            LD => self.opcode == CONSTANT && self.source == 0,
            LDX | ST | STX => self.opcode & 0xe0 == 0x60,
            // With an offset or a source these are signed, or of version 4.
            ALU32 if operation == BYTE_ORDER => matches!(self.operand, 16 | 32 | 64),
            ALU32 | ALU64 => operation < BYTE_ORDER && self.offset == 0,
            JMP64 if operation == CALL => return Err("calls a function"),
            JMP64 => operation <= 0xd0,
            _ => operation <= 0xd0 && !matches!(operation, ALWAYS | CALL | EXIT),
        };
        if !known {
            return Err(UNKNOWN);
        }
        let writes = matches!(self.class(), LD | LDX | ALU32 | ALU64);
        if writes && self.destination == 10 { Err("writes to the register of the stack") } else { Ok(()) }
    }
}

/// What the program can read and write.
struct Memory<'a> {
    arguments: &'a mut [u8],
    stack: [u8; STACK_BYTES],
}

impl Memory<'_> {
    fn at(&mut self, address: u64, size: usize) -> Option<&mut [u8]> {
        let (memory, base): (&mut [u8], u64) = if address < STACK { (&mut *self.arguments, ARGUMENTS) } else { (&mut self.stack, STACK) };
        let start = usize::try_from(address.checked_sub(base)?).ok()?;
        memory.get_mut(start..start.checked_add(size)?)
    }

    fn load(&mut self, address: u64, size: usize) -> Option<u64> {
        let mut bytes = [0; mem::size_of::<u64>()];
        bytes[..size].copy_from_slice(self.at(address, size)?);
        Some(u64::from_le_bytes(bytes))
    }

    fn store(&mut self, address: u64, size: usize, value: u64) -> Option<()> {
        self.at(address, size)?.copy_from_slice(&value.to_le_bytes()[..size]);
        Some(())
    }
}

/// Arithmetic of 64 bits. A division by zero gives 0, a remainder by zero the dividend.
fn alu64(operation: u8, left: u64, right: u64) -> u64 {
    match operation {
        0x00 => left.wrapping_add(right),
        0x10 => left.wrapping_sub(right),
        0x20 => left.wrapping_mul(right),
        0x30 => left.checked_div(right).unwrap_or(0),
        0x40 => left | right,
        0x50 => left & right,
        0x60 => left.wrapping_shl(right as u32),
        0x70 => left.wrapping_shr(right as u32),
        0x80 => left.wrapping_neg(),
        0x90 => left.checked_rem(right).unwrap_or(left),
        0xa0 => left ^ right,
        0xb0 => right,
        // 0xc0: `check` admits no other.
        _ => (left as i64).wrapping_shr(right as u32) as u64,
    }
}

/// The same of 32 bits.
fn alu32(operation: u8, left: u32, right: u32) -> u32 {
    match operation {
        0x00 => left.wrapping_add(right),
        0x10 => left.wrapping_sub(right),
        0x20 => left.wrapping_mul(right),
        0x30 => left.checked_div(right).unwrap_or(0),
        0x40 => left | right,
        0x50 => left & right,
        0x60 => left.wrapping_shl(right),
        0x70 => left.wrapping_shr(right),
        0x80 => left.wrapping_neg(),
        0x90 => left.checked_rem(right).unwrap_or(left),
        0xa0 => left ^ right,
        0xb0 => right,
        _ => (left as i32).wrapping_shr(right) as u32,
    }
}

/// The lowest bytes of a value in little-endian order, or in big-endian order.
fn byte_order(instruction: &Instruction, value: u64) -> u64 {
    let is_big = instruction.opcode & BY_REGISTER != 0;
    match instruction.operand {
        16 => u64::from(if is_big { (value as u16).swap_bytes() } else { value as u16 }),
        32 => u64::from(if is_big { (value as u32).swap_bytes() } else { value as u32 }),
        _ => {
            if is_big {
                value.swap_bytes()
            } else {
                value
            }
        }
    }
}

/// Whether a jump is taken: by its operands, unsigned and signed.
fn compare(operation: u8, left: u64, right: u64, signed_left: i64, signed_right: i64) -> bool {
    match operation {
        ALWAYS => true,
        0x10 => left == right,
        0x20 => left > right,
        0x30 => left >= right,
        0x40 => left & right != 0,
        0x50 => left != right,
        0x60 => signed_left > signed_right,
        0x70 => signed_left >= signed_right,
        0xa0 => left < right,
        0xb0 => left <= right,
        0xc0 => signed_left < signed_right,
        // 0xd0: `check` admits no other.
        _ => signed_left <= signed_right,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::{RngExt, SeedableRng};
    use rand_pcg::Pcg64Mcg;

    /// An instruction's bytes.
    fn code(opcode: u8, destination: u8, source: u8, offset: i16, immediate: i32) -> [u8; 8] {
        let ([low, high], [a, b, c, d]) = (offset.to_le_bytes(), immediate.to_le_bytes());
        [opcode, source << 4 | destination, low, high, a, b, c, d]
    }

    const EXIT_CODE: [u8; 8] = [EXIT | JMP64, 0, 0, 0, 0, 0, 0, 0];

    fn run(instructions: &[[u8; 8]], argument: u64) -> Result<u64, Fault> {
        let mut arguments = argument.to_le_bytes();
        Program::new(&instructions.concat())?.run(&mut arguments)?;
        Ok(u64::from_le_bytes(arguments))
    }

    /// The argument after `instructions`, which find it in register 2.
    fn computed(instructions: &[[u8; 8]], argument: u64) -> u64 {
        let load = [code(0x79, 2, 1, 0, 0)];
        let store = [code(0x7b, 1, 2, 0, 0), EXIT_CODE];
        run(&[&load, instructions, &store].concat(), argument).unwrap()
    }

    #[test]
    fn immediates_are_sign_extended_and_words_of_32_bits_are_not() {
        // r2 += -1; w2 += -1; w2 = -1
        assert_eq!(computed(&[code(0x07, 2, 0, 0, -1)], 1 << 40), (1 << 40) - 1);
        assert_eq!(computed(&[code(0x04, 2, 0, 0, -1)], 1 << 40), 0xffff_ffff);
        assert_eq!(computed(&[code(0xb4, 2, 0, 0, -1)], 7), 0xffff_ffff);
        // if r2 == -1 goto +1; r2 = 5
        let compared = [code(0x15, 2, 0, 1, -1), code(0xb7, 2, 0, 0, 5)];
        assert_eq!(computed(&compared, u64::MAX), u64::MAX);
        assert_eq!(computed(&compared, 0xffff_ffff), 5);
        // if w2 == -1 goto +1; r2 = 5
        assert_eq!(computed(&[code(0x16, 2, 0, 1, -1), code(0xb7, 2, 0, 0, 5)], 0xffff_ffff), 0xffff_ffff);
        // A constant of 64 bits.
        assert_eq!(computed(&[code(0x18, 2, 0, 0, -2), code(0, 0, 0, 0, 3)], 0), 3 << 32 | 0xffff_fffe);
    }

    #[test]
    fn divisions_by_zero_and_large_shifts_are_defined() {
        // r3 = 0; r2 /= r3, r2 %= r3, w2 %= r3
        let by_zero = |opcode| computed(&[code(0xb7, 3, 0, 0, 0), code(opcode, 2, 3, 0, 0)], 7 << 32 | 9);
        assert_eq!(by_zero(0x3f), 0);
        assert_eq!(by_zero(0x9f), 7 << 32 | 9);
        assert_eq!(by_zero(0x9c), 9);
        // r2 <<= 65, r2 s>>= 4
        assert_eq!(computed(&[code(0x67, 2, 0, 0, 65)], 3), 6);
        assert_eq!(computed(&[code(0xc7, 2, 0, 0, 4)], 1 << 63), 0xf8 << 56);
        // r2 = be16 r2
        assert_eq!(computed(&[code(0xdc, 2, 0, 0, 16)], 0x1_1234), 0x3412);
    }

    #[test]
    fn a_program_cannot_leave_its_memory_nor_run_forever() {
        let outside = |instruction| run(&[instruction, EXIT_CODE], 0).unwrap_err().what;
        assert_eq!(outside(code(0x79, 2, 1, 1, 0)), OUTSIDE, "beyond the end");
        assert_eq!(outside(code(0x71, 2, 1, -1, 0)), OUTSIDE, "before the beginning");
        assert_eq!(outside(code(0x7b, 0, 2, 0, 0)), OUTSIDE, "a null pointer");
        assert_eq!(outside(code(0x7a, 10, 0, 0, 1)), OUTSIDE, "beyond the stack");
        let stacked = [code(0x7a, 10, 0, -8, 4), code(0x79, 2, 10, -8, 0), code(0x7b, 1, 2, 0, 0), EXIT_CODE];
        assert_eq!(run(&stacked, 1), Ok(4));
        let forever = run(&[code(0x05, 0, 0, -1, 0), EXIT_CODE], 0).unwrap_err();
        assert_eq!(forever.what, "does not end within a million instructions");
        assert_eq!(run(&[code(0xb7, 0, 0, 0, 0)], 0).unwrap_err().what, "does not end with an exit");
    }

    #[test]
    fn what_is_no_program_of_a_controller_is_refused() {
        let refused = |instruction| Program::new(&[instruction, EXIT_CODE].concat()).err().map(|fault| fault.what);
        assert_eq!(refused(code(0x85, 0, 0, 0, 1)), Some("calls a function"));
        assert_eq!(refused(code(0x05, 0, 0, 1, 0)), Some("jumps to where there is no instruction"));
        assert_eq!(refused(code(0xb7, 10, 0, 0, 0)), Some("writes to the register of the stack"));
        assert_eq!(refused(code(0xb7, 11, 0, 0, 0)), Some("uses a register that does not exist"));
        assert!(refused(code(0xdb, 1, 2, 0, 0)).is_some(), "atomic");
        assert!(refused(code(0x18, 1, 1, 0, 0)).is_some(), "the address of a map");
        assert!(Program::new(&[0; 7]).is_err());
    }

    #[test]
    fn no_program_panics() {
        let mut random = Pcg64Mcg::seed_from_u64(3);
        let mut ran = 0;
        for _ in 0..50_000 {
            let instructions: Vec<[u8; 8]> = (0..random.random_range(1..8))
                .map(|_| {
                    let (destination, source) = (random.random_range(0..11), random.random_range(0..11));
                    let immediate = if random.random_bool(0.5) { random.random() } else { random.random_range(-2..66) };
                    // Forward jumps only, so that each ends soon.
                    code(random.random(), destination, source, random.random_range(0..3), immediate)
                })
                .collect();
            if let Ok(program) = Program::new(&[instructions.concat(), EXIT_CODE.to_vec()].concat()) {
                let _ = program.run(&mut [0; 64]);
                ran += 1;
            }
        }
        assert!(ran > 1000, "{ran} programs ran");
    }
}
