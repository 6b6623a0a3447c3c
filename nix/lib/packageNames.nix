# Names of packages and what is in them, for hints if all of a package set is allowed: it has tens
# of thousands of names. To evaluate each of them would take minutes, and may fail in ways that Nix
# cannot catch.
{
  # Modules of Python that people import. What they are imported as is asked of them
  # (pythonImportsCheck).
  python = [
    "aiohttp"
    "altair"
    "attrs"
    "beautifulsoup4"
    "biopython"
    "bokeh"
    "boto3"
    "certifi"
    "chardet"
    "click"
    "cryptography"
    "cython"
    "dask"
    "django"
    "duckdb"
    "faker"
    "fastapi"
    "flask"
    "geopandas"
    "gensim"
    "gitpython"
    "h5py"
    "html5lib"
    "httpx"
    "hypothesis"
    "imageio"
    "ipython"
    "jax"
    "jinja2"
    "jsonschema"
    "keras"
    "lightgbm"
    "lxml"
    "markdown"
    "matplotlib"
    "mpmath"
    "msgpack"
    "networkx"
    "nltk"
    "numba"
    "numpy"
    "opencv4"
    "openpyxl"
    "orjson"
    "pandas"
    "paramiko"
    "pdfplumber"
    "pillow"
    "plotly"
    "polars"
    "protobuf"
    "psutil"
    "psycopg2"
    "pyarrow"
    "pycryptodome"
    "pydantic"
    "pygments"
    "pyjwt"
    "pymongo"
    "pymupdf"
    "pymysql"
    "pypdf"
    "pyserial"
    "pytesseract"
    "pytest"
    "python-dateutil"
    "python-docx"
    "python-dotenv"
    "python-pptx"
    "pytz"
    "pyyaml"
    "pyzmq"
    "redis"
    "regex"
    "reportlab"
    "requests"
    "rich"
    "scikit-image"
    "scikit-learn"
    "scipy"
    "seaborn"
    "shapely"
    "spacy"
    "sqlalchemy"
    "statsmodels"
    "sympy"
    "tabulate"
    "tensorflow"
    "toml"
    "torch"
    "tqdm"
    "transformers"
    "typer"
    "tzdata"
    "ujson"
    "wordcloud"
    "xgboost"
    "xlrd"
    "xlsxwriter"
  ];

  # Programs that people start. What they are called is asked of them
  # (meta.mainProgram).
  programs = [
    "bat"
    "bc"
    "cmake"
    "deno"
    "exiftool"
    "fd"
    "ffmpeg"
    "gcc"
    "ghostscript"
    "gnumake"
    "gnuplot"
    "go"
    "graphviz"
    "hyperfine"
    "imagemagick"
    "jq"
    "lua"
    "mupdf"
    "ninja"
    "nodejs"
    "octave"
    "pandoc"
    "perl"
    "php"
    "poppler-utils"
    "postgresql"
    "python3"
    "qpdf"
    "R"
    "ripgrep"
    "ruby"
    "shellcheck"
    "sox"
    "sqlite"
    "tesseract"
    "texliveSmall"
    "tree"
    "typst"
    "universal-ctags"
    "xmlstarlet"
    "yq-go"
    "zip"
  ];

  # Of modules that do not say what they are imported as, or not all of it.
  importedAs = {
    Crypto = "pycryptodome";
    PIL = "pillow";
    bs4 = "beautifulsoup4";
    cv2 = "opencv4";
    dateutil = "python-dateutil";
    docx = "python-docx";
    dotenv = "python-dotenv";
    fitz = "pymupdf";
    git = "gitpython";
    jwt = "pyjwt";
    pptx = "python-pptx";
    serial = "pyserial";
    skimage = "scikit-image";
    sklearn = "scikit-learn";
    yaml = "pyyaml";
    zmq = "pyzmq";
  };

  # Programs beside the main one of their package.
  providedBy = {
    R = "R";
    Rscript = "R";
    cc = "gcc";
    compare = "imagemagick";
    convert = "imagemagick";
    ctags = "universal-ctags";
    dot = "graphviz";
    ffprobe = "ffmpeg";
    "g++" = "gcc";
    gs = "ghostscript";
    identify = "imagemagick";
    magick = "imagemagick";
    montage = "imagemagick";
    neato = "graphviz";
    npm = "nodejs";
    npx = "nodejs";
    pdfimages = "poppler-utils";
    pdfinfo = "poppler-utils";
    pdflatex = "texliveSmall";
    pdftocairo = "poppler-utils";
    pdftoppm = "poppler-utils";
    pdftotext = "poppler-utils";
    psql = "postgresql";
    xelatex = "texliveSmall";
    yq = "yq-go";
  };
}
