import type { KvCache } from '../../runtime/cache.js';
import { saveCache } from '../../runtime/cacheFile.js';

// Saves caches of nothing but ones, or twos, to a file, one after the other, until it is killed or a save fails.
const [path, bytes] = process.argv.slice(2);
const contents = [1, 2].map((byte) => new Uint8Array(Number(bytes)).fill(byte));
for (let round = 0; ; round++) {
  const cache = { save: async () => contents[round % 2]! } as unknown as KvCache;
  try {
    await saveCache(cache, path!);
  } catch (error) {
    console.log(`${error}`);
    process.exit(1);
  }
  if (round === 0) console.log('saved');
}
