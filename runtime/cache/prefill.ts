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
    const upload = (label: string, data: Uint16Array) => {
      const buffer = device.allocate(label, data.byteLength);
      owned.push(buffer);
      device.write(buffer, data);
      return { buffer };
    };
    const input = {
      ...memory.bindingsOf(sequence),
      keys: upload('keys', prompt.keys),
      values: upload('values', prompt.values),
      ...(prompt.queries && g.weighted ? { queries: upload('queries', prompt.queries) } : {}),
    };
    const sizes = { promptTokens: prompt.tokens, middleTokens: lengths.middleTokens, queryTokens };
    await device.run(encodeLaunches(kernels, input, sizes, owned));
  });
}
