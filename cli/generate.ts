import { join } from 'node:path';
import { generate, manifestText } from '../codegen/generate.js';
import { type LockOptions, tunedChoice } from './lockOptions.js';
import type { Context, Outcome } from './output.js';
import { writeGenerated } from './outputFolder.js';
import { resolveModel, resolveScheme } from './resolve.js';
import { duration, grouped, table } from './table.js';
import { type SchedulingOptions, targetOf, tunablesOf } from './target.js';
import { oneOfNames } from './values.js';

export interface GenerateOptions extends SchedulingOptions, LockOptions {
  readonly model: string;
  readonly target: string;
  readonly out: string;
}

export async function generateCommand(
  context: Context,
  schemeName: string,
  options: GenerateOptions,
): Promise<Outcome> {
  const started = performance.now();
  const target = targetOf(oneOfNames('--target', options.target, ['cuda', 'wgsl']), options);
  const named = tunablesOf(options.set);
  const model = await resolveModel(options.model);
  const scheme = await resolveScheme(schemeName, model);
  const { choice } = await tunedChoice(context, options, { scheme, model, target }, named);
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
