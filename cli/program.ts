import { readFileSync } from 'node:fs';
import { Command, CommanderError } from 'commander';
import pc from 'picocolors';
import { packagePath } from '../codegen/packageRoot.js';
import type { DemoOptions } from './demo.js';
import type { GenerateOptions } from './generate.js';
import type { InspectOptions } from './inspect.js';
import { OpenThings } from './interrupt.js';
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
    withSchedule(
      forScheme('generate', 'write the kernels of a scheme for a model, and their manifest')
        .requiredOption('--target <language>', 'cuda or wgsl')
        .requiredOption('--out <folder>', 'where the files go: a new or empty folder, or one generated before'),
    ),
  );
  add<InspectOptions>(
    async (options, scheme) => (await import('./inspect.js')).inspect(context, scheme, options),
    forScheme('inspect', 'print the byte plan of one sequence in one layer')
      .requiredOption('--tokens <n>', 'tokens of the prompt')
      .option('--generated <n>', 'tokens generated after it that may enter the stream', '0'),
  );
  add<VerifyOptions>(
    async (options, scheme) => (await import('./verify.js')).verify(context, scheme, options),
    withSchedule(
      forScheme('verify', 'hold the kernels to the float64 reference on drawn cases')
        .requiredOption('--device <device>', 'emulator, webgpu or cuda')
        .option('--cases <n>', 'how many cases', '100')
        .option('--seed <n>', 'where the draws start; the same seed draws the same cases', '1'),
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

/** The options of kernels, as `generate` writes them. */
function withSchedule(command: Command): Command {
  return command
    .option('--arch <arch>', 'cuda: the lowest architecture, sm_80 to sm_120 (default: sm_80)')
    .option('--plain', 'cuda: float32 arithmetic instead of tensor cores')
    .option('--f16', 'wgsl: tiles in shader-f16')
    .option('--subgroups', 'wgsl: reductions by subgroups')
    .option('--set <stage.tunable=value>', 'choose a tunable; may be repeated', collected, []);
}

const collected = (value: string, before: readonly string[]): readonly string[] => [...before, value];

function usageError({ message, code }: CommanderError): UsageError {
  const [first, ...rest] = message.replace(/^error: /, '').split('\n');
  if (code === 'commander.help') return new UsageError('no command', 'See kvforge --help.');
  return new UsageError(first!, rest.join(' ').replace(/^\(|\)$/g, '') || 'See kvforge --help.');
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
  try {
    await declare(session).parseAsync(args, { from: 'user' });
  } catch (error) {
    if (!(error instanceof CommanderError)) return fail(error, session, json);
    // Help and the version end by a throw as well.
    if (error.exitCode !== 0) return fail(usageError(error), session, json);
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
