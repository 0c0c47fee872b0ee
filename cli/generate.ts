import { join } from 'node:path';
import { generate, manifestText, type TunableChoice } from '../codegen/generate.js';
import { KvforgeError } from '../dsl/errors.js';
import { architectures, type Target } from '../dsl/stage.js';
import { stages } from '../dsl/stages/index.js';
import { type Context, type Outcome, UsageError } from './output.js';
import { writeGenerated } from './outputFolder.js';
import { resolveModel, resolveScheme } from './resolve.js';
import { duration, grouped, table } from './table.js';
import { oneOfNames } from './values.js';

export interface GenerateOptions {
  readonly model: string;
  readonly target: string;
  readonly out: string;
  readonly arch?: string;
  readonly plain?: true;
  readonly f16?: true;
  readonly subgroups?: true;
  readonly set: readonly string[];
}

/** What every WebGPU device has. */
const workgroupBytes = 16384;

export async function generateCommand(
  context: Context,
  schemeName: string,
  options: GenerateOptions,
): Promise<Outcome> {
  const started = performance.now();
  const target = targetOf(options);
  const choice = tunablesOf(options.set);
  const [scheme, model] = await Promise.all([resolveScheme(schemeName), resolveModel(options.model)]);
  const generated = await generate(scheme, model, target, choice);
  const text = manifestText(generated.manifest);
  await writeGenerated(options.out, generated.files, text);

  const files = Object.entries(generated.manifest.files).map(([name, { bytes, sha256 }]) => ({
    path: join(options.out, name),
    bytes,
    sha256,
  }));
  const manifest = join(options.out, 'manifest.json');
  const ms = Math.round(performance.now() - started);
  const rows = files.map(({ path, bytes, sha256 }) => [path, grouped(bytes), sha256.slice(0, 12)]);
  const list = table(
    [{ title: 'file' }, { title: 'bytes', align: 'right' }, { title: 'sha256' }],
    rows,
    context.colors,
  );
  const closing = `${files.length} files and ${manifest} for ${scheme.name} on ${model.name}, in ${duration(ms)}\n`;
  return { json: { scheme: scheme.name, model: model.name, target, files, manifest, ms }, text: `${list}\n${closing}` };
}

function targetOf(options: GenerateOptions): Target {
  const language = oneOfNames('--target', options.target, ['cuda', 'wgsl']);
  const foreign = language === 'cuda' ? (['f16', 'subgroups'] as const) : (['arch', 'plain'] as const);
  for (const name of foreign) {
    if (options[name] !== undefined) {
      throw new UsageError(`--${name} does not apply to --target ${language}`, 'Leave it out.');
    }
  }
  if (language === 'wgsl') {
    return { language, f16: options.f16 === true, subgroups: options.subgroups === true, workgroupBytes };
  }
  const arch = oneOfNames('--arch', options.arch ?? 'sm_80', architectures);
  return { language, arch, tensorCores: options.plain !== true };
}

/** `attend.warps=8` and its like, by stage; what a stage may take is checked where it is used. */
function tunablesOf(settings: readonly string[]): TunableChoice {
  const choice: Record<string, Record<string, number>> = {};
  const names = stages.map(({ name }) => name);
  for (const setting of settings) {
    const [, stage, tunable, value] = /^([A-Za-z]+)\.([A-Za-z]\w*)=(\d{1,9})$/.exec(setting) ?? [];
    if (stage === undefined) {
      throw new UsageError(
        `--set: expected stage.tunable=number, got ${JSON.stringify(setting)}`,
        'For example: --set attend.warps=8.',
      );
    }
    if (!names.includes(stage)) {
      throw new KvforgeError('wrong-use', {
        at: `--set ${setting}`,
        expected: `a stage of ${names.join(', ')}`,
        received: stage,
        hint: 'Name the stage before the dot.',
      });
    }
    choice[stage] = { ...choice[stage], [tunable!]: Number(value) };
  }
  return choice;
}
