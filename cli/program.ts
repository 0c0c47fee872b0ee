import { readFileSync } from 'node:fs';
import { Command, CommanderError } from 'commander';
import pc from 'picocolors';
import { packagePath } from '../codegen/packageRoot.js';
import { archiveCommand } from './archiveCommand.js';
import type { BenchOptions } from './bench.js';
import type { CalibrateOptions } from './calibrate.js';
import type { CompareOptions } from './compare.js';
import type { DemoOptions } from './demo.js';
import type { GenerateOptions } from './generate.js';
import type { InspectOptions } from './inspect.js';
import { OpenThings } from './interrupt.js';
import type { MixOptions } from './mix.js';
import type { NewSchemeOptions } from './newScheme.js';
import {
  type Context,
  type ExitCode,
  errorText,
  exitCodeOf,
  exitCodes,
  jsonDocument,
  type Outcome,
  reportError,
  type Streams,
  UsageError,
} from './output.js';
import type { ReconstructOptions } from './reconstruct.js';
import type { TuneOptions } from './tune.js';
import type { VerifyOptions } from './verify.js';

interface Session {
  readonly streams: Streams;
  readonly open: OpenThings;
  readonly context: Context;
  outcome: Outcome | undefined;
  /** Text that commander prints by itself: help, the version. */
  printed: string;
}

// Nothing here may import a command, or anything else that takes time, before the command is known: `--help` comes
// within 200 ms.
function declare(session: Session): Command {
  const { version, description } = JSON.parse(readFileSync(packagePath('package.json'), 'utf8')) as {
    version: string;
    description: string;
  };
  const program = settled(new Command('kvforge').description(description).version(version), session);
  const add = <Options>(run: (options: Options, scheme: string) => Promise<Outcome>, command: Command) => {
    command.action(async (...args: unknown[]) => {
      session.outcome = await run(command.opts() as Options, String(args[0]));
    });
    program.addCommand(settled(command, session));
  };
  const { context } = session;
  add<DemoOptions>(
    async (options) => (await import('./demo.js')).demo(context, options),
    new Command('demo')
      .description('compress real activations without a GPU, check the kernels, write a report')
      .option('--out <file>', 'where the report goes', 'report.html')
      .option('--layers <list>', 'layers of the bundled activations', '2,14,27')
      .option('--backends <list>', 'of emulator, webgpu', 'emulator,webgpu'),
  );
  add(
    async () => (await import('./doctor.js')).doctor(context),
    new Command('doctor').description('list what is here, what is missing, and how to get it'),
  );
  add<GenerateOptions>(
    async (options, scheme) => (await import('./generate.js')).generateCommand(context, scheme, options),
    withTuned(
      forScheme('generate', 'write the kernels of a scheme for a model, and their manifest')
        .requiredOption('--target <language>', 'cuda or wgsl')
        .requiredOption('--out <folder>', 'where the files go: a new or empty folder, or one generated before'),
    ),
  );
  // `scheme` is a word of its own, so that other things can be made by the same command.
  const making = settled(new Command('new').description('write files to start from'), session);
  making.addCommand(
    settled(
      new Command('scheme')
        .description('write a scheme with a codec of its own, and its test')
        .argument('<name>', 'of the scheme and the files: lower-case letters, digits and hyphens')
        .option('--dir <folder>', 'where the files go', '.')
        .action(async (name: string, options: NewSchemeOptions) => {
          session.outcome = await (await import('./newScheme.js')).newScheme(context, name, options);
        }),
      session,
    ),
  );
  program.addCommand(making);
  add<InspectOptions>(
    async (options, scheme) => (await import('./inspect.js')).inspect(context, scheme, options),
    forScheme('inspect', 'print the byte plan of one sequence in one layer')
      .requiredOption('--tokens <n>', 'tokens of the prompt')
      .option('--generated <n>', 'tokens generated after it that may enter the stream', '0'),
  );
  add<VerifyOptions>(
    async (options, scheme) => (await import('./verify.js')).verify(context, scheme, options),
    withTuned(
      forScheme('verify', 'hold the kernels to the float64 reference on drawn cases')
        .requiredOption('--device <device>', 'emulator, webgpu or cuda')
        .option('--cases <n>', 'how many cases', '100')
        .option('--seed <n>', 'where the draws start; the same seed draws the same cases', '1'),
    ),
  );
  add<BenchOptions>(
    async (options, schemes) => (await import('./bench.js')).bench(context, schemes, options),
    withLock(
      withSchedule(
        forScheme('bench', 'time attention over caches of schemes (commas between them) beside fp16 and cuDNN')
          .requiredOption('--device <device>', 'emulator, webgpu or cuda')
          .option('--shapes <list>', 'sequences x tokens: 1x8192,16x8192 (default: known ones for the device)')
          .option('--baseline <name>', 'what ratios are to: cudnn or fp16 (default: cudnn on CUDA, else fp16)')
          .option('--torch <python>', 'a Python with torch, for cuDNN', 'python3')
          .option('--encode [tokens]', 'time compressing a prompt too (default: 8192 tokens)')
          .option('--samples <n>', 'samples of each time', '25')
          .option('--budget <seconds>', 'begin no shape that would take longer than what is left of this', '600')
          .option('--seed <n>', 'where the inputs start; the same seed gives the same inputs', '1')
          .option('--out <file>', 'write the JSON document there too')
          .option('--html <file>', 'write a report with plots there')
          .option('--history <file>', 'plot this output of kvforge tune --json in the report'),
        'that of the GPU',
        'that of the device',
      ),
    ),
  );
  add<CompareOptions>(
    async (options, schemes) => (await import('./compare.js')).compare(context, schemes, options),
    withLock(
      withTarget(
        new Command('compare')
          .description('put schemes beside each other: bytes, attention error on recorded activations, times')
          .argument(
            '[schemes...]',
            'presets and files that export a scheme, commas between them (default: all presets)',
          )
          .requiredOption('--model <model>', 'a preset, or the path of a Hugging Face config.json')
          .option('--activations <file>', 'recorded from the model (default for smollm2-135m: those of the package)')
          .option('--layers <list>', 'of the activations (default: all)')
          .option('--device <device>', 'emulator, webgpu or cuda', 'emulator')
          .option('--shapes <list>', 'sequences x tokens; bytes are of the first (default: 1 x the recorded tokens)')
          .option('--samples <n>', 'samples of each time, on a GPU', '25')
          .option('--budget <seconds>', 'begin no shape that would take longer than what is left of this', '600')
          .option('--seed <n>', 'where the inputs of times start; the same seed gives the same inputs', '1')
          .option('--out <file>', 'write the JSON document there too')
          .option('--html <file>', 'write a page with the table and a plot there'),
        'that of the GPU',
        'that of the device',
      ),
    ),
  );
  add<MixOptions>(
    async (options) => (await import('./mix.js')).mixCommand(context, options),
    new Command('mix')
      .description('find the schemes of keys and of values for every layer, with the least error for their bytes')
      .requiredOption('--model <model>', 'a preset, or the path of a Hugging Face config.json')
      .requiredOption('--bytes-per-token <n>', 'of one layer, keys and values, mean over the layers')
      .option('--activations <file>', 'recorded from the model (default for smollm2-135m: those of the package)')
      .option(
        '--schemes <list>',
        'what keys and values may be coded with: presets, and files as file.ts#name',
        'int8,turboquant4,turboquant3,turboquant2,int4,int4-hadamard,int2-hadamard',
      )
      .option('--front <list>', 'more budgets to print, in bytes a token')
      .option('--out <file>', 'a .ts file that exports a scheme for every layer, or a .json document'),
  );
  add<ReconstructOptions>(
    async (options, scheme) => (await import('./reconstruct.js')).reconstruct(context, scheme, options),
    forScheme('reconstruct', 'compress the layers of a safetensors file, and write what is read back from the codes')
      .requiredOption('--device <device>', 'emulator, webgpu or cuda')
      .requiredOption('--input <file>', 'layers.N.keys and .values, F16 [KV heads][tokens][head dim], keys after RoPE')
      .requiredOption('--output <file>', 'where the same tensors go, reconstructed')
      .option('--calibration <file>', 'what keys are coded by, from kvforge calibrate (default: fitted to the input)'),
  );
  const calibrating = new Command('calibrate')
    .description('fit what keys are coded by to recorded texts, once for a model')
    .argument('<activations...>', 'safetensors files, a text each: layers.N.keys, .values and .queries, F16')
    .requiredOption('--model <model>', 'a preset, or the path of a Hugging Face config.json')
    .requiredOption('--scheme <scheme>', 'tilt-fast, tilt-safe, or the path of a file that exports such a scheme')
    .requiredOption('--out <file>', 'where the calibration goes')
    .action(async (files: readonly string[], options: CalibrateOptions) => {
      session.outcome = await (await import('./calibrate.js')).calibrateCommand(context, files, options);
    });
  program.addCommand(settled(calibrating, session));
  add<TuneOptions>(
    async (options, scheme) => (await import('./tune.js')).tuneCommand(context, scheme, options),
    withTarget(
      forScheme('tune', 'search the tunables of kernels on a device, and keep the winners in a lock file')
        .requiredOption('--device <device>', 'emulator, webgpu or cuda')
        .option('--stages <list>', 'of the stages that have tunables (default: all, attend first)')
        .option('--shapes <list>', 'sequences x tokens: 1x8192,16x8192', '1x8192')
        .option('--budget <seconds>', 'for everything, compilation included', '60')
        .option('--limit <seconds>', 'a candidate that takes longer counts as hung', '60')
        .option('--lockfile <file>', 'where winners go', 'kvforge.lock.json')
        .option('--explain', 'list every configuration that was not tried, and why')
        .option('--retry', 'try again what failed before: crashed, hung, was refused or wrong')
        .option('--exhaustive', 'try what predictions would leave out, as far as the budget goes')
        .option('--trade-accuracy', 'also try tunables that give accuracy for time, within what the check allows'),
      'that of the GPU',
      'that of the device',
    ),
  );
  program.addCommand(
    archiveCommand(
      (command) => settled(command, session),
      async (run) => {
        session.outcome = await run(await import('./archive.js'), context);
      },
    ),
  );
  return program;
}

/** What all commands and the program share. */
function settled(command: Command, session: Session): Command {
  return command
    .exitOverride()
    .showSuggestionAfterError()
    .configureOutput({
      writeOut: (text) => {
        session.printed += text;
      },
      // The error that commander throws says the same.
      writeErr: () => {},
    })
    .option('--json', 'print exactly one JSON document to stdout; progress goes to stderr');
}

function forScheme(name: string, description: string): Command {
  return new Command(name)
    .description(description)
    .argument(
      '<scheme>',
      'a preset, or the path of a .ts, .js or .mjs file that exports a scheme (file.ts#name picks one)',
    )
    .requiredOption('--model <model>', 'a preset, or the path of a Hugging Face config.json');
}

/** What kernels are for; the defaults are the command's. */
function withTarget(command: Command, usualArch: string, usualBytes: string): Command {
  return command
    .option('--arch <arch>', `cuda: the lowest architecture, sm_80 to sm_120 (default: ${usualArch})`)
    .option('--plain', 'cuda: float32 arithmetic instead of tensor cores')
    .option('--f16', 'wgsl: tiles in shader-f16')
    .option('--subgroups', 'wgsl: reductions by subgroups')
    .option(
      '--subgroup-matrices',
      'wgsl: attention by subgroup matrices, for adapters that have them; with --f16 and --subgroups',
    )
    .option('--workgroup-bytes <n>', `wgsl: workgroup storage that kernels may use (default: ${usualBytes})`);
}

/** The options of kernels, as `generate` writes them. */
function withSchedule(command: Command, usualArch = 'sm_80', usualBytes = '16384'): Command {
  const setting = '--set <stage.tunable=value>';
  return withTarget(command, usualArch, usualBytes).option(setting, 'choose a tunable; may be repeated', collected, []);
}

/** The options of kernels, and where tuned ones come from. */
function withTuned(command: Command): Command {
  return withLock(withSchedule(command)).option(
    '--shape <shape>',
    'sequences x tokens that winners are wanted for (default: 1x8192)',
  );
}

function withLock(command: Command): Command {
  return command
    .option('--lockfile <file>', 'winners of kvforge tune (default: kvforge.lock.json, if there is one)')
    .option('--no-lockfile', 'default tunables');
}

const collected = (value: string, before: readonly string[]): readonly string[] => [...before, value];

/** @param command the one whose options or arguments are wrong, where one was named */
function usageError({ message, code }: CommanderError, command: string | undefined): UsageError {
  const [first, ...rest] = message.replace(/^error: /, '').split('\n');
  const help = `See kvforge ${command === undefined ? '' : `${command} `}--help.`;
  if (code === 'commander.help') return new UsageError('no command', help);
  return new UsageError(first!, rest.join(' ').replace(/^\(|\)$/g, '') || help);
}

/**
 * Runs the command line.
 *
 * @param args without the program and its script
 * @param open receives what the user's interruption must close
 * @returns the exit code
 * @example
 * await runCli(['inspect', 'shard', '--model', 'llama-3.1-8b', '--tokens', '8192'], streams);
 */
export async function runCli(args: readonly string[], streams: Streams, open = new OpenThings()): Promise<ExitCode> {
  const json = args.includes('--json');
  const colors = !json && streams.outIsTerminal && pc.isColorSupported;
  const session: Session = {
    streams,
    open,
    outcome: undefined,
    printed: '',
    context: { colors, progress: (line) => streams.err(`${line}\n`), onInterrupt: (close) => open.add(close) },
  };
  const program = declare(session);
  try {
    await program.parseAsync(args, { from: 'user' });
  } catch (error) {
    if (!(error instanceof CommanderError)) return fail(error, session, json);
    // Help and the version end by a throw as well.
    if (error.exitCode !== 0) {
      const named = args.find((arg) => !arg.startsWith('-'));
      const command = program.commands.find((each) => each.name() === named);
      return fail(usageError(error, command?.name()), session, json);
    }
  }
  const { outcome, printed } = session;
  if (outcome) streams.out(json ? jsonDocument(outcome.json) : outcome.text);
  else streams.out(json ? jsonDocument({ help: printed }) : printed);
  return outcome?.code ?? exitCodes.done;
}

function fail(error: unknown, { streams, context }: Session, json: boolean): ExitCode {
  const report = reportError(error);
  if (report.code === 'internal' && error instanceof Error) streams.err(`${error.stack}\n`);
  if (json) streams.out(jsonDocument({ error: report }));
  else streams.err(errorText(report, pc.createColors(context.colors).red));
  return exitCodeOf(report.code);
}
