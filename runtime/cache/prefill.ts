import { shareLaunches } from '../calibrate/keptFit.js';
import { encodeLaunches } from '../encode.js';
import { checkPrompt, type Prompt } from './checkPrompt.js';
import { promptLengths } from './lengths.js';
import type { CacheMemory } from './memory.js';
import { scopedOrEmpty } from './scoped.js';

/** Compresses a prompt into a sequence, which is empty if that fails half-way. */
export async function prefill(memory: CacheMemory, sequence: number, prompt: Prompt): Promise<void> {
  const { geometry: g, device, kernels } = memory;
  const queryTokens = checkPrompt(g, prompt, memory.capacity);
  const lengths = promptLengths(g, prompt.tokens);
  await scopedOrEmpty(memory, [sequence], async (owned) => {
    memory.writeRecord(sequence, lengths, { queryTokens });
    const upload = (label: string, data: Uint16Array | Float32Array) => {
      const buffer = device.allocate(label, data.byteLength);
      owned.push(buffer);
      device.write(buffer, data);
      return { buffer };
    };
    const fit = prompt.fit && g.family === 'tilt' ? memory.keptFit.of(device, g, prompt.fit) : undefined;
    const bindings = memory.bindingsOf(sequence);
    const input = {
      ...bindings,
      keys: upload('keys', prompt.keys),
      ...(prompt.values ? { values: upload('values', prompt.values) } : {}),
      ...(fit && { fit: fit.encoder }),
      ...(prompt.queries && g.weighted && !fit ? { queries: upload('queries', prompt.queries) } : {}),
    };
    const sizes = { promptTokens: prompt.tokens, middleTokens: lengths.middleTokens, queryTokens };
    const to = {
      parts: memory.layout.parts,
      base: memory.shareOffset(memory.shares[sequence]!),
      cache: bindings.cache,
    };
    const placing = fit ? shareLaunches(kernels, fit, to, owned) : [];
    await device.run([...placing, ...encodeLaunches(kernels, input, sizes, owned)]);
  }).catch((fault: unknown) => {
    // What could not be uploaded may show only once it is read, and must not serve the next prompt.
    memory.keptFit.release();
    throw fault;
  });
}
