import { generate } from '../codegen/generate.js';
import type { VerifyFailure, VerifyResult, VerifyScheme } from '../runtime/verify/index.js';
import { deviceNames, openDevice } from './devices.js';
import { type LockOptions, tunedChoice } from './lockOptions.js';
import { type Context, exitCodes, type Outcome } from './output.js';
import { quoted } from './quoted.js';
import { resolveModel, resolveScheme } from './resolve.js';
import { table } from './table.js';
import { type SchedulingOptions, targetOf, tunablesOf } from './target.js';
import { oneOfNames, wholeNumber } from './values.js';

export interface VerifyOptions extends SchedulingOptions, LockOptions {
  readonly model: string;
  readonly device: string;
  readonly cases: string;
  readonly seed: string;
}

export interface VerifyTools {
  readonly open: typeof openDevice;
  readonly verifyScheme: () => Promise<VerifyScheme>;
}

const shownFailures = 20;

export async function verify(
  context: Context,
  schemeName: string,
  options: VerifyOptions,
  tools: VerifyTools = { open: openDevice, verifyScheme: loadVerifyScheme },
): Promise<Outcome> {
  const deviceName = oneOfNames('--device', options.device, deviceNames);
  const cases = wholeNumber('--cases', options.cases, { from: 1, to: 1_000_000 });
  const seed = wholeNumber('--seed', options.seed, { from: 0, to: 2 ** 32 - 1 });
  const model = await resolveModel(options.model);
  const scheme = await resolveScheme(schemeName, model);
  const language = deviceName === 'webgpu' ? 'wgsl' : 'cuda';
  const target = targetOf(language, options);
  const named = tunablesOf(options.set);
  const device = await tools.open(deviceName, { checks: 'full' }, context);
  const started = performance.now();
  let result: VerifyResult;
  try {
    const kernels = { scheme, model, target, device: device.identity.name };
    const { choice } = await tunedChoice(context, options, kernels, named);
    const generated = await generate(scheme, model, target, choice);
    context.progress(`verifying ${scheme.name} on ${model.name}: ${device.description}`);
    const verifyScheme = await tools.verifyScheme();
    result = await verifyScheme(device, scheme, model, { cases, seed, generated, onProgress: reporter(context) });
  } finally {
    await device.close();
  }
  const replay = (failure: VerifyFailure) =>
    `kvforge verify ${quoted(schemeName)} --model ${quoted(options.model)} --device ${deviceName}${schedule(options)} --cases 1 --seed ${failure.seed}`;
  const failures = result.failures.map((failure) => ({ ...failure, replay: replay(failure) }));
  return {
    code: result.failed > 0 ? exitCodes.failed : exitCodes.done,
    json: {
      scheme: scheme.name,
      model: model.name,
      device: device.description,
      ...result,
      failures,
      ms: Math.round(performance.now() - started),
    },
    text: textOf(result, failures, context),
  };
}

/** The options of the kernels, as they were given. */
function schedule(options: VerifyOptions): string {
  const { arch, plain, f16, subgroups, subgroupMatrices, workgroupBytes, set, lockfile, shape } = options;
  const flags = [
    plain && '--plain',
    f16 && '--f16',
    subgroups && '--subgroups',
    subgroupMatrices && '--subgroup-matrices',
  ].filter(Boolean);
  const tuned =
    lockfile === false ? ['--no-lockfile'] : lockfile === undefined ? [] : [`--lockfile ${quoted(lockfile)}`];
  const given = [
    ...(arch === undefined ? [] : [`--arch ${arch}`]),
    ...flags,
    ...(workgroupBytes === undefined ? [] : [`--workgroup-bytes ${workgroupBytes}`]),
    ...set.map((each) => `--set ${each}`),
    ...tuned,
    ...(shape === undefined ? [] : [`--shape ${shape}`]),
  ];
  return given.map((text) => ` ${text}`).join('');
}

async function loadVerifyScheme(): Promise<VerifyScheme> {
  return (await import('../runtime/verify/index.js')).verifyScheme;
}

/** A line at most every two seconds. */
function reporter(context: Context): (line: string) => void {
  let last = performance.now();
  return (line) => {
    if (performance.now() - last < 2000) return;
    last = performance.now();
    context.progress(line);
  };
}

function textOf(
  result: VerifyResult,
  failures: readonly (VerifyFailure & { replay: string })[],
  context: Context,
): string {
  const { cases, failed, maxError, skipped, notes, seed } = result;
  const counts = `${cases} cases, ${failed} failed, ${skipped} skipped; largest error ${maxError.toExponential(1)}; seed ${seed}\n`;
  const summary = counts + notes.map((note) => `  ${note}\n`).join('');
  if (failures.length === 0) return summary;
  const rows = failures
    .slice(0, shownFailures)
    .map((failure) => [
      String(failure.case),
      failure.what,
      failure.error.toExponential(2),
      failure.bar.toExponential(0),
    ]);
  const columns = [
    { title: 'case' },
    { title: 'what' },
    { title: 'error', align: 'right' },
    { title: 'bar', align: 'right' },
  ] as const;
  const more =
    failures.length > shownFailures ? `and ${failures.length - shownFailures} more (all of them with --json)\n` : '';
  return `${summary}\n${table(columns, rows, context.colors)}${more}\nReplay the first: ${failures[0]!.replay}\n`;
}
