import { Command } from 'commander';
import type { Context, Outcome } from './output.js';

/** `archive` and what can be done with one; the commands themselves are loaded when they are known. */
export function archiveCommand(
  settled: (command: Command) => Command,
  done: (run: (commands: typeof import('./archive.js'), context: Context) => Promise<Outcome>) => Promise<void>,
): Command {
  const making = settled(
    new Command('archive').description('pack caches for a disk or another machine, and read them'),
  );
  const add = (command: Command) => making.addCommand(settled(command));
  const pack = new Command('pack')
    .description('compress the layers of a safetensors file into an archive')
    .argument(
      '<activations>',
      'layers.N.keys and .values (or .k and .v), F16 [KV heads][tokens][head dim], keys after RoPE',
    )
    .requiredOption('--model <model>', 'a preset, or the path of a Hugging Face config.json')
    .requiredOption('--budget <n>', 'bytes of a token in one layer, keys and values, of the whole file')
    .requiredOption('--out <file>', 'where the archive goes')
    .option('--sinks <n>', 'first tokens that are kept exactly', '4')
    .option('--window <n>', 'last tokens that are kept exactly', '64')
    .option('--joint-layers <n>', 'layers that share a basis', '1')
    .option('--basis <archive>', 'use the bases of this archive instead of new ones');
  add(pack.action((input: string) => done((commands, context) => commands.packCommand(context, input, pack.opts()))));
  const unpack = new Command('unpack')
    .description('write keys and values of an archive to a safetensors file')
    .argument('<archive>', 'what kvforge archive pack has written')
    .requiredOption('--out <file>', 'where layers.N.keys and layers.N.values go')
    .option('--model <model>', 'refuse an archive of another model')
    .option('--basis <archive>', 'whose bases it was packed with');
  add(
    unpack.action((input: string) =>
      done((commands, context) => commands.unpackCommand(context, input, unpack.opts())),
    ),
  );
  const inspect = new Command('inspect')
    .description('print what is in an archive')
    .argument('<archive>', 'what kvforge archive pack has written');
  add(inspect.action((input: string) => done((commands, context) => commands.inspectCommand(context, input))));
  return making;
}
