import { basename } from 'node:path';
import type { KernelDescriptor } from '../../codegen/manifest.js';
import { type ErrorParts, KvforgeError } from '../../dsl/errors.js';
import { runProgram } from './toolchain.js';

interface Site {
  readonly thread: number;
  readonly block: number;
  /** Return address from the start of the library; 0 where there is none. */
  readonly pc: number;
  /** Line, where the host knows it; 0 otherwise. */
  readonly line: number;
  readonly write: boolean;
}

interface Report {
  readonly kind: string;
  readonly text: string;
  readonly launch: number;
  readonly bytes: number;
  readonly address: string;
  readonly detail: number;
  readonly space: 'binding' | 'static' | 'dynamic' | 'released' | 'unbound' | 'stack' | 'module' | 'null' | 'none';
  readonly binding: number;
  readonly offset: number;
  readonly at: Site;
  readonly other?: Site;
}

/** What is known of a launch when it faults. */
export interface FaultContext {
  readonly descriptor: KernelDescriptor;
  readonly library: string;
  readonly file: string;
  readonly grid: readonly [number, number, number];
  /** Bytes bound, in binding order. */
  readonly bindingBytes: readonly number[];
}

type Words = Omit<ErrorParts, 'at'>;

/** `file.cu:line` of a return address: the innermost frame in the kernel's own text, past inlined prelude functions. */
async function lineOf(site: Site, context: FaultContext): Promise<string> {
  if (site.line > 0) return `${context.file}:${site.line}`;
  if (site.pc === 0) return context.file;
  // The return address is one past the call.
  const { stdout } = await runProgram('addr2line', ['-i', '-e', context.library, `0x${(site.pc - 1).toString(16)}`]);
  for (const frame of stdout.split('\n')) {
    const found = /^(.*):(\d+)/.exec(frame);
    if (found !== null && basename(found[1]!) === context.file) return `${context.file}:${found[2]}`;
  }
  return context.file;
}

function blockName(linear: number, grid: readonly [number, number, number]): string {
  const x = linear % grid[0];
  const y = Math.floor(linear / grid[0]) % grid[1];
  const z = Math.floor(linear / grid[0] / grid[1]);
  return `block (${x}, ${y}, ${z})`;
}

function byteRange(first: number, count: number): string {
  return count === 1 ? `byte ${first}` : `bytes ${first}..${first + count - 1}`;
}

/** The shared array at an offset of the library's TLS block, by the symbol table. */
async function sharedName(offset: number, bytes: number, library: string): Promise<string> {
  const { stdout } = await runProgram('nm', ['-S', '-C', library]);
  for (const line of stdout.split('\n')) {
    const found = /^([0-9a-f]+) ([0-9a-f]+) [bBdD] (.*)$/.exec(line);
    if (found === null) continue;
    const start = Number.parseInt(found[1]!, 16);
    if (offset < start || offset >= start + Number.parseInt(found[2]!, 16)) continue;
    const name = found[3]!.split('::').at(-1)!;
    return `${byteRange(offset - start, bytes)} of shared ${name}`;
  }
  return `${byteRange(offset, bytes)} of shared memory`;
}

async function placeName(report: Report, context: FaultContext): Promise<string> {
  const { offset, bytes } = report;
  if (report.space === 'binding') {
    return `${byteRange(offset, bytes)} of ${context.descriptor.bindings[report.binding]?.name}`;
  }
  if (report.space === 'static') return sharedName(offset, bytes, context.library);
  if (report.space === 'dynamic') return `${byteRange(offset, bytes)} of shared_memory`;
  if (report.space === 'released') return `${bytes} bytes of a released buffer`;
  if (report.space === 'unbound') return `${bytes} bytes of a buffer that this launch does not bind`;
  if (report.space === 'stack') return `${bytes} bytes of the local memory of thread ${report.binding}`;
  if (report.space === 'module') return `${bytes} bytes of a constant of the file`;
  return `${bytes} bytes at address ${report.address}`;
}

function laneList(mask: number): string {
  const lanes = Array.from({ length: 32 }, (_, lane) => lane).filter((lane) => (mask >>> lane) & 1);
  return lanes.length === 1 ? `lane ${lanes[0]}` : `lanes ${lanes.join(', ')}`;
}

function extentOf(report: Report, context: FaultContext): string {
  if (report.space === 'binding') {
    const name = context.descriptor.bindings[report.binding]?.name;
    return `${byteRange(0, context.bindingBytes[report.binding] ?? 0)} of ${name}`;
  }
  if (report.space === 'dynamic') {
    const { dynamic } = context.descriptor.sharedBytes;
    return dynamic === 0 ? 'no use of shared_memory (0 bytes)' : `${byteRange(0, dynamic)} of shared_memory`;
  }
  return 'memory of a binding, shared memory or own variables';
}

function accessWords(report: Report, place: string, who: string, context: FaultContext): Words | undefined {
  const verb = report.at.write ? 'a write of' : 'a read of';
  const shared = report.space === 'static' || report.space === 'dynamic';
  switch (report.kind) {
    case 'outside':
      return {
        expected: extentOf(report, context),
        received: `${verb} ${place} by ${who}`,
        hint: 'Guard the index, or give it more memory.',
      };
    case 'read-only':
      return {
        expected: `only reads of ${context.descriptor.bindings[report.binding]?.name}, whose access is 'read'`,
        received: `${verb} ${place} by ${who}`,
        hint: "Declare the binding 'read_write'.",
      };
    case 'unwritten':
      return {
        expected: 'a read of bytes written before',
        received: `${verb} ${place}, never written, by ${who}`,
        hint: shared
          ? 'Write them first in the same block; after a cp.async, wait for its group.'
          : 'Write them first, from the host or in a kernel.',
      };
    case 'misaligned-atomic':
      return { expected: 'an address that is a multiple of 4', received: `${place} by ${who}`, hint: 'Align it.' };
    default:
      return undefined;
  }
}

function raceWords(report: Report, place: string, who: string, otherLine: string, context: FaultContext): Words {
  const verb = report.at.write ? 'a write' : 'a read';
  const otherVerb = report.other?.write ? 'a write' : 'a read';
  if (report.kind === 'thread-race') {
    return {
      expected: `a barrier between two uses of ${place}`,
      received: `${verb} by ${who} and ${otherVerb} by thread ${report.other?.thread} at ${otherLine}`,
      hint: 'Put __syncthreads() between them, or __syncwarp() where both are in one warp.',
    };
  }
  const other = blockName(report.other?.block ?? 0, context.grid);
  return {
    expected: `no unordered use of ${place} by two blocks`,
    received: `${verb} by ${who} and ${otherVerb} by ${other} at ${otherLine}`,
    hint: 'Use atomics, publish by __threadfence() and an atomic, or split the launch.',
  };
}

function collectiveWords(report: Report, who: string, otherLine: string): Words | undefined {
  const other = `thread ${report.other?.thread}`;
  switch (report.kind) {
    case 'barrier-mismatch':
      return {
        expected: 'all threads of the block at one __syncthreads()',
        received: `${who} here and ${other} at ${otherLine}`,
        hint: 'Move the barrier out of the branch.',
      };
    case 'barrier-exited':
      return {
        expected: 'all threads of the block at one __syncthreads()',
        received: `${who} here, while ${other} has returned`,
        hint: 'Let every thread reach every barrier; guard the work between them instead.',
      };
    case 'lanes-missing':
      return {
        expected: `${laneList(report.detail)} of the warp in the collective that names them`,
        received: `${who} here, while ${other} waits at ${otherLine}`,
        hint: 'Move the collective out of the branch, or name fewer lanes in the mask.',
      };
    case 'lanes-exited':
      return {
        expected: `${laneList(report.detail)} of the warp in the collective that names them`,
        received: `${who} here, while ${other} has returned`,
        hint: 'Let all lanes of the mask reach it, or make the mask smaller.',
      };
    case 'not-in-mask':
      return {
        expected: 'a mask that includes the calling lane',
        received: `mask 0x${report.detail.toString(16)} by ${who}`,
        hint: 'Call it only in lanes that the mask names.',
      };
    case 'partial-warp':
      return {
        expected: 'a full warp of 32 threads for mma or ldmatrix',
        received: `${who}, whose warp has fewer`,
        hint: 'Make the block a multiple of 32 threads.',
      };
    case 'named-barrier':
      return {
        expected: 'a barrier from 1 to 15, by as many threads, in whole warps, as the others there named',
        received: `barrier ${report.detail} by ${who}`,
        hint: 'Give all calls the same number of threads; number 0 is __syncthreads().',
      };
    case 'unpublished':
      return {
        expected: 'publish_shared() between a store and the products that read it',
        received: `products of the warp of ${who}, of what ${other} stored at ${otherLine}`,
        hint: 'Let every thread that stores call publish_shared(), then pass a barrier.',
      };
    case 'deadlock':
      return {
        expected: 'threads that go on',
        received: `every thread of the block waiting, with ${who} here`,
        hint: 'Let all threads reach the same collectives.',
      };
    default:
      return undefined;
  }
}

function languageWords(report: Report, who: string): Words {
  switch (report.kind) {
    case 'index':
      return {
        expected: 'an index inside the array',
        received: `index ${report.detail} by ${who}`,
        hint: 'Guard the index, or make the array longer.',
      };
    case 'shift':
      return {
        expected: 'a shift by less than the width of the type',
        received: `a shift by ${report.detail} by ${who}`,
        hint: 'Guard the shift: CUDA, C++ and WGSL each give something else.',
      };
    case 'division':
      return { expected: 'a divisor other than 0', received: `0 by ${who}`, hint: 'Guard the division.' };
    case 'misaligned':
      return {
        expected: `an address that is a multiple of ${report.detail}`,
        received: `another by ${who}`,
        hint: 'Align the offset, or access narrower words.',
      };
    case 'not-shared':
      return {
        expected: 'an address in shared memory',
        received: `another by ${who}`,
        hint: 'ldmatrix reads, and cp.async writes, shared memory only.',
      };
    default: {
      const cause =
        report.text === 'stack'
          ? 'an overflow of its stack (over 100 KiB of local variables)'
          : `signal ${report.detail}`;
      return {
        expected: 'a kernel that runs to its end',
        received: `${cause} at address ${report.address} in ${who}`,
        hint: "Run it with checks: 'full' for a closer report; the device is lost.",
      };
    }
  }
}

/** Puts a fault that the host program sent into words. */
export async function describeFault(json: string, contexts: readonly FaultContext[]): Promise<KvforgeError> {
  const report = JSON.parse(json) as Report;
  const context = contexts[report.launch]!;
  const who = `thread ${report.at.thread} of ${blockName(report.at.block, context.grid)} of ${context.descriptor.entry}`;
  const [at, otherLine, place] = await Promise.all([
    report.text.includes('/') && report.at.line > 0 && basename(report.text) !== context.file
      ? lineOf({ ...report.at, line: 0 }, context)
      : lineOf(report.at, context),
    report.other === undefined ? '' : lineOf(report.other, context),
    placeName(report, context),
  ]);
  const words = report.kind.endsWith('-race')
    ? raceWords(report, place, who, otherLine, context)
    : (accessWords(report, place, who, context) ??
      collectiveWords(report, who, otherLine) ??
      languageWords(report, who));
  return new KvforgeError(report.kind === 'crash' ? 'device-lost' : 'kernel-fault', { at, ...words });
}
