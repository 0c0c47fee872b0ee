/**
 * Asks of a device what every `Device` promises, without a test runner:
 *
 *   node conformance.mjs cuda|webgpu|webgpu-plain|emulator
 *
 * Prints every failure and a count; ends with 1 if there was one.
 */
import { DeviceBench } from '../../test/runtime/conformance/bench.js';
import { conformanceCases } from '../../test/runtime/conformance/cases.js';
import { backendOf } from './openDevice.js';

/** A case that takes longer hangs. */
const limitMs = 60_000;

const backend = backendOf(process.argv[2]);
const bench = await DeviceBench.start(backend.open);
console.log(`conformance of ${bench.device.description}, clock of the ${bench.device.clock}`);
let [failed, skipped] = [0, 0];
for (const { name, run } of conformanceCases) {
  const started = performance.now();
  const late = new Promise<never>((_, reject) => {
    setTimeout(() => reject(new Error(`not done after ${limitMs} ms`)), limitMs).unref();
  });
  try {
    const reason = await Promise.race([run(bench), late]);
    const took = `${(performance.now() - started).toFixed(0)} ms`;
    if (reason !== undefined) skipped++;
    console.log(reason === undefined ? `  ok ${name} (${took})` : `  skipped ${name}: ${reason}`);
  } catch (error) {
    failed++;
    console.log(`  FAILED ${name}\n${error instanceof Error ? (error.stack ?? error.message) : String(error)}`);
  }
}
console.log(`${conformanceCases.length} cases, ${failed} failed, ${skipped} skipped`);
await bench.device.close();
process.exit(failed > 0 ? 1 : 0);
