/**
 * Holds every kernel of both presets to float64 on a device, over the shapes of the property tests and of real models,
 * and launches each kernel again and again on the same input to see that its bytes stay:
 *
 *   node verifyAll.mjs cuda [--cases 1000] [--launches 1000] [--seconds 90] [--jobs 8] [--seed 1] [--only MODEL]
 *     [--schemes shard,shard-plus] [--json PATH]
 *
 * `cases` are those of a scheme over all models together, `launches` those of every kernel on one input; 0 leaves either
 * out. Parts (a scheme on a model) run in `jobs` processes, as float64 takes longer than the device, and a part begins no
 * case after `seconds`. Prints a table; ends with 1 after a failure, with 2 for options that verify nothing, and with 3 if
 * time ended before the cases.
 */
import { spawn } from 'node:child_process';
import { writeFileSync } from 'node:fs';
import { parseArgs } from 'node:util';
import { backendOf, countOf } from './openDevice.js';
import { fits, models, type Part, type PartResult, repeatedModels, runPart, schemes } from './verifyPart.js';

const { values: options, positionals } = parseArgs({
  allowPositionals: true,
  options: {
    cases: { type: 'string', default: '1000' },
    launches: { type: 'string', default: '1000' },
    seconds: { type: 'string', default: '90' },
    jobs: { type: 'string', default: '8' },
    seed: { type: 'string', default: '1' },
    only: { type: 'string' },
    schemes: { type: 'string', default: 'shard,shard-plus' },
    json: { type: 'string' },
    part: { type: 'string' },
  },
});

if (options.part !== undefined) {
  console.log(JSON.stringify(await runPart(JSON.parse(options.part) as Part)));
  process.exit(0);
}

const device = positionals[0] ?? '';
backendOf(device);
const names = Object.keys(models).filter((name) => options.only === undefined || name === options.only);
if (names.length === 0) {
  console.error(`expected --only to be one of ${Object.keys(models).join(', ')}, got ${options.only}`);
  process.exit(2);
}
const chosen = options.schemes.split(',');
for (const name of chosen) {
  if (Object.hasOwn(schemes, name)) continue;
  console.error(`expected --schemes of ${Object.keys(schemes).join(', ')}, got ${name}`);
  process.exit(2);
}
const [cases, launches] = [countOf('--cases', options.cases, 0), countOf('--launches', options.launches, 0)];
const [seconds, jobs] = [countOf('--seconds', options.seconds, 1), countOf('--jobs', options.jobs, 1)];
const seed = countOf('--seed', options.seed, 0);
// One launch has nothing to be compared with.
if ((cases === 0 && launches === 0) || launches === 1) {
  console.error('expected --cases above 0, or --launches of at least 2: nothing would be verified');
  process.exit(2);
}
// Float64 takes as much longer as a model is wider, so wide ones get fewer of the cases.
const shareOf = (name: string) => Math.min(1, 192 / models[name]!.width);
const shares = names.reduce((sum, name) => sum + shareOf(name), 0);
const partOf = (scheme: string, model: string, own: Pick<Part, 'cases' | 'launches'>): Part => ({
  ...{ device, scheme, model, seconds },
  // No two models of a scheme see the same cases.
  seed: seed + names.indexOf(model) * 100_000,
  ...own,
});
const everywhere = chosen.flatMap((scheme) =>
  names.filter((model) => fits(schemes[scheme]!, models[model]!)).map((model) => ({ scheme, model })),
);
const caseParts = everywhere
  .map(({ scheme, model }) => {
    return partOf(scheme, model, { cases: Math.ceil((cases * shareOf(model)) / shares), launches: 0 });
  })
  // The widest take longest, and come first.
  .sort((a, b) => models[b.model]!.width - models[a.model]!.width);
const repeatParts = everywhere
  .filter(({ model }) => names.length === 1 || repeatedModels.includes(model))
  .map(({ scheme, model }) => partOf(scheme, model, { cases: 0, launches }));
const results: PartResult[] = [];
const broken: string[] = [];

async function runParts(parts: readonly Part[], workers: number): Promise<void> {
  const waiting = [...parts];
  const worker = async (): Promise<void> => {
    for (let part = waiting.shift(); part !== undefined; part = waiting.shift()) {
      const { code, out, err } = await runProcess(part);
      const line = out.trim().split('\n').at(-1) ?? '';
      if (code === 0 && line.startsWith('{')) results.push(JSON.parse(line) as PartResult);
      else broken.push(`${part.scheme} on ${part.model}: ended with ${code}\n${err.slice(0, 2000)}`);
    }
  };
  await Promise.all(Array.from({ length: workers }, worker));
}

function runProcess(part: Part): Promise<{ code: number | null; out: string; err: string }> {
  return new Promise((resolve, reject) => {
    const flags = ['--part', JSON.stringify(part)];
    const child = spawn(process.execPath, [...process.execArgv, process.argv[1]!, ...flags], { stdio: 'pipe' });
    let [out, err] = ['', ''];
    child.stdout.on('data', (data) => {
      out += data;
    });
    child.stderr.on('data', (data) => {
      err += data;
    });
    child.on('error', reject);
    child.on('close', (code) => resolve({ code, out, err }));
  });
}

if (cases > 0) await runParts(caseParts, jobs);
// A GPU takes turns between processes, which would be most of the time of a repeated launch.
if (launches > 0) await runParts(repeatParts, 1);
if (options.json !== undefined) writeFileSync(options.json, `${JSON.stringify({ results, broken }, null, 1)}\n`);

console.log(results[0]?.description ?? 'no part ended well');
console.log(results[0]?.target ?? '');
const pad = (text: string | number, width: number) => String(text).padStart(width);
let [failed, unstable, short] = [0, 0, 0];
for (const scheme of chosen) {
  let made = 0;
  for (const result of results.filter((one) => one.scheme === scheme)) {
    const head = `${scheme.padEnd(15)} ${result.model.padEnd(46)}`;
    const seconds = `${pad((result.ms / 1000).toFixed(0), 4)} s`;
    if (result.launches > 0) {
      const seen = result.stability.filter((one) => one.launches > 0);
      const unseen = result.stability.filter((one) => one.launches === 0).map(({ entry }) => entry);
      const differing = seen.filter((one) => one.differing > 0);
      const least = Math.min(...seen.map((one) => one.launches));
      console.log(
        `${head} ${seen.length} kernels, at least ${least} launches each: ${differing.length} differ ${seconds}`,
      );
      if (seen.length === 0) broken.push(`${scheme} on ${result.model}: no kernel was launched`);
      short += least < result.launches ? 1 : 0;
      if (unseen.length > 0) console.log(`    not launched: ${unseen.join(', ')}`);
      for (const one of differing) console.log(`    DIFFERS: ${one.entry} in ${one.differing} launches`);
      unstable += differing.length;
      continue;
    }
    console.log(
      `${head} ${pad(result.made, 5)} cases ${pad(result.failed, 4)} failed ${pad(result.skipped, 4)} skipped` +
        `  error ${result.maxError.toExponential(1)} ${seconds}`,
    );
    for (const one of result.failures.slice(0, 5)) {
      console.log(`    FAILED: seed ${one.seed}: ${one.what}: ${one.error.toExponential(2)} above ${one.bar}`);
    }
    made += result.made;
    failed += result.failed;
    short += result.made < result.cases ? 1 : 0;
  }
  console.log(`${scheme.padEnd(15)} ${made} cases`);
}
for (const text of broken) console.log(`BROKEN: ${text}`);
if (failed > 0 || unstable > 0 || broken.length > 0) process.exit(1);
process.exit(short > 0 ? 3 : 0);
