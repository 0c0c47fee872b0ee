import type { CompareDocument, CompareRow } from './schema.js';

export interface ColumnText {
  readonly title: string;
  readonly align: 'left' | 'right';
}

/** A row as people read it: a text for every column. */
export interface RowText {
  readonly row: CompareRow;
  readonly cells: readonly string[];
  /** Why figures are missing or not to be trusted, and what else there is to say. */
  readonly remarks: readonly string[];
}

/** The comparison as one table, the same on a terminal and on a page. */
export function tableOf(document: CompareDocument): {
  readonly columns: readonly ColumnText[];
  readonly rows: readonly RowText[];
} {
  const { shapes, rows, untimed } = document;
  const timed = untimed === null ? [...shapes.map((shape) => timeColumn('attend', shape)), encodeColumn(document)] : [];
  const columns = [...columnsOf(shapes[0]!), ...timed];
  return {
    columns: columns.map(({ title, align }) => ({ title, align: align ?? 'right' })),
    rows: rows.map((row) => ({ row, cells: columns.map(({ text }) => text(row)), remarks: remarksOf(row) })),
  };
}

interface Column {
  readonly title: string;
  readonly align?: ColumnText['align'];
  readonly text: (row: CompareRow) => string;
}

const from = (value: number | null, text: (value: number) => string) => (value === null ? '' : text(value));
const percent = (part: number) => `${(part * 100).toFixed(2)}%`;

function columnsOf(shape: string): readonly Column[] {
  return [
    { title: 'scheme', align: 'left', text: ({ scheme }) => scheme },
    { title: 'front', align: 'left', text: ({ front }) => (front ? '*' : '') },
    { title: `bytes, ${shape}`, text: ({ bytes }) => from(bytes, (value) => value.toLocaleString('en-US')) },
    { title: 'a token', text: ({ bytesPerToken }) => from(bytesPerToken, (value) => value.toFixed(1)) },
    { title: 'to fp16', text: ({ ratio }) => from(ratio, (value) => value.toFixed(2)) },
    { title: 'error', text: ({ attentionError }) => from(attentionError, percent) },
    { title: 'bias', text: ({ attentionBias }) => from(attentionBias, percent) },
    { title: 'kernel error', text: kernelText },
  ];
}

function kernelText({ kernelError, correct, layers }: CompareRow): string {
  if (layers.length === 0) return correct === false ? 'failed' : '';
  const text = kernelError === null ? 'no number' : kernelError.toExponential(1);
  return correct === true ? text : `${text} WRONG`;
}

function timeColumn(stage: 'attend' | 'encode', shape: string): Column {
  const title = `${stage === 'attend' ? 'decode' : 'encode'} ${shape}, us`;
  const text = ({ times }: CompareRow) => {
    const found = times.find((time) => time.stage === stage && time.shape === shape);
    return found === undefined ? '' : `${found.us.toFixed(1)}${found.correct ? '' : ' WRONG'}`;
  };
  return { title, text };
}

/** A prompt is encoded alone, whatever the batch of the first shape. */
function encodeColumn({ shapes }: CompareDocument): Column {
  return timeColumn('encode', `1x${shapes[0]!.split('x')[1]}`);
}

function remarksOf({
  reason,
  layers,
  kernelError,
  errorBar,
  attentionError,
  times,
  notes,
}: CompareRow): readonly string[] {
  const wrong: string[] = [];
  if (layers.length > 0 && !(kernelError !== null && kernelError <= errorBar!)) {
    const got = kernelError === null ? 'no number' : kernelError.toExponential(1);
    wrong.push(`wrong: kernel error ${got}, at most ${errorBar!.toExponential(0)} is right`);
  }
  if (layers.length > 0 && attentionError === null) wrong.push('wrong: the attention error is no number');
  for (const { stage, shape, maxError, errorBar: bar, correct } of times) {
    if (correct) continue;
    const got = maxError === null ? 'no number' : maxError.toExponential(1);
    wrong.push(`wrong: ${stage}, ${shape}: error ${got}, at most ${bar.toExponential(0)} is right`);
  }
  return [...(reason === null ? [] : [reason]), ...wrong, ...notes];
}
