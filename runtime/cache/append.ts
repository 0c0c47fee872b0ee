import type { DeviceBuffer, Launch } from '../device.js';
import { checkHalf } from '../halfBits.js';
import { checkWhole } from './checkInput.js';
import { checkValues } from './checkPrompt.js';
import { grownWithin } from './lengths.js';
import type { CacheMemory } from './memory.js';
import { scoped } from './scoped.js';

export interface AppendOptions {
  /** New tokens of every sequence; 1 if left out. */
  readonly tokens?: number;
}

/** New tokens of every sequence. */
interface NewTokens {
  /** f16 bits [sequences][tokens][KV heads][head dim]. */
  readonly keys: Uint16Array;
  readonly values: Uint16Array | undefined;
  readonly tokens: number;
}

/** A launch binds one step, and a range that is bound starts on a multiple of 256 bytes. */
const stepAlignment = 256;
/** Most steps of one submission; more would only keep more of their input on the device at once. */
const mostSteps = 256;

/** Appends to every sequence, or to none where one has no room. */
export async function append(memory: CacheMemory, input: NewTokens): Promise<void> {
  const { geometry: g, capacity } = memory;
  const { keys, values, tokens } = input;
  checkWhole(tokens, { at: 'tokens', least: 1, most: 2 ** 24, hint: 'Leave it out for one token a sequence.' });
  const dimensions = [
    { name: 'sequence', size: capacity.sequences },
    { name: 'token', size: tokens },
    { name: 'KV head', size: g.kvHeads },
    { name: 'channel', size: g.headDim },
  ];
  checkHalf(keys, { name: `keys, layer ${capacity.layer}`, dimensions });
  checkValues(g, values, { name: `values, layer ${capacity.layer}`, dimensions });
  grownWithin(g, await memory.readRecords(), { tokens, generated: capacity.generated });
  // The input of a submission is one buffer, which no device need have larger than what a kernel may bind.
  const room = Math.floor(memory.device.limits.bytesPerBinding / stepBytes(memory));
  const steps = Math.max(1, Math.min(mostSteps, room));
  for (let first = 0; first < tokens; first += steps) {
    const end = Math.min(tokens, first + steps);
    await scoped((owned) => memory.device.run(appendLaunches(memory, input, { first, end }, owned)));
  }
}

/** Keys, or values, of one token of every sequence, padded to where the next step may be bound. */
function stepBytes({ geometry, capacity }: CacheMemory): number {
  return Math.ceil((capacity.sequences * geometry.width * 2) / stepAlignment) * stepAlignment;
}

/** The launches that append the tokens from `first` to before `end`: the kernel takes one token a sequence. */
function appendLaunches(
  memory: CacheMemory,
  input: NewTokens,
  { first, end }: { readonly first: number; readonly end: number },
  owned: DeviceBuffer[],
): readonly Launch[] {
  const { kernels, device, geometry: g, bindings } = memory;
  const { sequences } = memory.capacity;
  const bytes = sequences * g.width * 2;
  const stride = stepBytes(memory);
  const upload = (label: string, given: Uint16Array): DeviceBuffer => {
    const steps = new Uint16Array(((end - first) * stride) / 2);
    for (let token = first; token < end; token++) {
      for (let sequence = 0; sequence < sequences; sequence++) {
        const from = (sequence * input.tokens + token) * g.width;
        steps.set(given.subarray(from, from + g.width), ((token - first) * stride) / 2 + sequence * g.width);
      }
    }
    const buffer = device.allocate(label, steps.byteLength);
    owned.push(buffer);
    device.write(buffer, steps);
    return buffer;
  };
  const keys = upload('new_keys', input.keys);
  const values = input.values && upload('new_values', input.values);
  return Array.from({ length: end - first }, (_, step) => {
    const range = (buffer: DeviceBuffer) => ({ buffer, offset: step * stride, bytes });
    return kernels.launch(
      'append_token',
      { sequences },
      { ...bindings, new_keys: range(keys), ...(values ? { new_values: range(values) } : {}) },
    );
  });
}
